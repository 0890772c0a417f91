//! The Kafka side of the operator's commands: `doctor`, `init`, `replay` and `verify`.

pub(crate) mod copy;
pub(crate) mod doctor;
pub(crate) mod fingerprint;
pub(crate) mod inspect;
pub(crate) mod new_topic;
pub(crate) mod reader;
pub(crate) mod timestamp;
