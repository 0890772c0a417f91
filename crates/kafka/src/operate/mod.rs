//! The Kafka side of the operator's commands: `doctor`, `init`, `replay` and `verify`.

pub mod copy;
pub mod doctor;
pub mod fingerprint;
pub mod inspect;
pub mod new_topic;
pub mod reader;
pub(crate) mod timestamp;
