//! The promises of the crate, against a real Postgres.

#![allow(clippy::unwrap_used)] // also in what the tests share

mod database;
mod drivers;
mod enqueue;
mod enqueue_many;
mod payload;
mod refusals;
mod round_trips;
mod transaction_only;
mod wire;
