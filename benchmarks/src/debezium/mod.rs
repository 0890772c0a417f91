//! Debezium, the best alternative known, tuned as well as we can: Kafka Connect with the Postgres connector and the outbox
//! event router.

mod attached;
pub mod connect;
mod connector;
mod rest;
mod tuning;

pub use attached::Debezium;
pub use tuning::Tuning;

/// The header in which Debezium's records have the event's id.
pub const EVENT_ID: &str = "id";
