//! All use of Kafka: scratch topics, and a consumer that is independent of the relay.

pub mod consume;
pub mod topics;
