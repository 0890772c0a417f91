//! The guarantees of the crate, tested with a real PostgreSQL.

#![allow(clippy::unwrap_used)] // also in shared code

mod database;
mod drivers;
mod enqueue;
mod enqueue_many;
mod payload;
mod refusals;
mod round_trips;
mod transaction_only;
mod wire;
