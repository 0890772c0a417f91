//! Everything that is Kafka: [`cluster`] opens producers, [`producer`] publishes, [`failure`] says what an error means.

pub mod cluster;
pub mod codes;
mod complaints;
mod context;
pub mod doctor;
pub mod failure;
mod handshake;
pub mod inspect;
pub mod library;
pub mod limits;
mod polled;
pub mod producer;
pub mod properties;
pub mod record;
mod statistics;
mod token_endpoint;
mod tokens;
