//! All use of Kafka: [`cluster`] opens producers, [`producer`] publishes, and [`failure`] maps errors to reasons.

pub mod cluster;
pub mod codes;
mod context;
pub(crate) mod copy;
mod critical_logs;
pub(crate) mod doctor;
pub mod failure;
pub(crate) mod fingerprint;
mod handshake;
pub(crate) mod inspect;
pub(crate) mod library;
pub(crate) mod limits;
pub(crate) mod new_topic;
mod polled;
pub mod producer;
pub mod properties;
pub(crate) mod reader;
pub mod record;
mod statistics;
mod timestamp;
mod tokens;
