//! Everything that is SQL.
//!
//! [`claim`] and `settle` are the cycle's two halves, [`statements`] their text; [`lookout`] is the scout's eye.

pub mod acts;
pub mod blocked_keys;
pub mod check;
pub mod claim;
pub mod connect;
pub mod dead_letters;
pub mod doctor;
pub mod event;
pub mod fault;
pub mod grants;
mod handshake;
mod head;
pub mod holders;
pub mod holds;
pub mod lookout;
pub mod migrate;
pub(crate) mod module_grants;
mod open;
pub mod pauses;
pub mod payload;
pub mod pooler;
mod reading;
pub mod reap;
pub mod reap_modules;
mod reap_round;
pub mod roles;
pub mod selection;
pub mod server_error;
pub mod session;
mod settle;
pub mod sqlstates;
pub mod statements;
pub mod status;
pub mod table;
pub mod tls;
mod transaction;
