//! The database side of a running relay: claims and settlements, the scout, the probes of held topics, the reaper.

pub mod claim;
pub mod event;
pub mod holds;
pub mod measurements;
pub mod reap;
pub mod scout;
pub(crate) mod settle;
pub mod statements;
