//! Everything that is Kafka: [`cluster`] opens producers, [`producer`] publishes, [`failure`] says what an error means.

pub mod cluster;
mod context;
pub mod failure;
pub mod limits;
pub mod producer;
pub mod properties;
pub mod record;
