//! The model of Kafka.

pub mod broker;
pub mod cluster;
mod producer;
mod queue;
