//! The measured processes, and what they use.

pub mod metrics;
pub mod parties;
pub(crate) mod proc;
pub mod program;
pub mod relay;
pub mod usage;
