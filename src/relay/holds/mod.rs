//! Holds: topics whose rows wait, the probes that find out when they work again, and what operators have paused.

pub(crate) mod elsewhere;
pub(crate) mod flight;
pub(crate) mod found;
pub(crate) mod holding;
pub(crate) mod known;
pub(crate) mod leaders;
pub mod pauses;
pub(crate) mod probe;
pub mod prober;
pub(crate) mod turns;
