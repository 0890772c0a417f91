//! The database side of a running relay: claims and settlements, the scout, the probes of held topics, the reaper.

pub mod claim;
pub(crate) mod claim_transaction;
pub(crate) mod discard;
pub mod event;
pub(crate) mod head;
pub mod holds;
pub(crate) mod reading;
pub mod reap;
pub(crate) mod reap_modules;
pub(crate) mod reap_round;
pub mod scout;
pub(crate) mod search;
pub(crate) mod settle;
pub mod statements;
