//! The promises of the crate, against a real Postgres.

mod database;
mod drivers;
mod enqueue;
mod enqueue_many;
mod payload;
mod refusals;
mod transaction_only;
