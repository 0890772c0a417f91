//! Holds: topics whose rows wait, the probes that find out when they work again, and what operators have paused.

pub mod elsewhere;
pub(crate) mod flight;
pub(crate) mod found;
pub mod holding;
pub mod known;
pub(crate) mod leaders;
pub mod pauses;
pub mod probe;
pub mod prober;
pub(crate) mod turns;
