//! Debezium, the best alternative that we know, tuned as well as we can: Kafka Connect with the PostgreSQL connector
//! and the outbox event router.

mod attached;
pub mod connect;
mod connector;
mod rest;
mod tuning;

pub use attached::Debezium;
pub use tuning::Tuning;

/// The header in which Debezium publishes the event's id.
pub const EVENT_ID: &str = "id";
