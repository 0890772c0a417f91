//! The statements of a running relay: the claim and its settlement, the scout's looks, the probes of held topics, reaping.

pub mod claim;
pub mod event;
pub(crate) mod head;
pub mod holds;
pub mod lookout;
pub(crate) mod open;
pub(crate) mod reading;
pub mod reap;
pub(crate) mod reap_modules;
pub(crate) mod reap_round;
pub(crate) mod settle;
pub mod statements;
