//! Maps errors of the Kafka client to reasons.

pub mod codes;
pub mod failure;
pub(crate) mod handshake;
