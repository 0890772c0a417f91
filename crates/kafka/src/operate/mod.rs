//! The Kafka side of the operator's commands: `doctor`, `init`, `replay` and `verify`.

pub mod copy;
pub mod doctor;
pub mod reader;
pub mod topics;
