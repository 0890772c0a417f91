//! Tests the crate on a real PostgreSQL server.

#![allow(clippy::unwrap_used)]

mod database;
mod drivers;
mod enqueue;
mod enqueue_many;
mod payload;
mod refusals;
mod round_trips;
mod testing;
#[cfg(feature = "opentelemetry")]
mod trace;
mod transaction_only;
mod wire;
