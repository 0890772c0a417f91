//! Holds: topics whose rows wait, the probes that end holds, and pauses.

pub(crate) mod flight;
pub(crate) mod holding;
pub(crate) mod known;
pub(crate) mod leaders;
pub mod pauses;
pub(crate) mod probe;
pub mod prober;
pub(crate) mod results;
pub(crate) mod turns;
