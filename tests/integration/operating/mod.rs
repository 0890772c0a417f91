//! The commands of an operator.

mod audit;
mod blocked_keys;
pub(crate) mod commands;
pub(crate) mod dead_letters;
pub(crate) mod doctor;
mod init;
mod newcomer;
mod pauses;
mod replay;
mod status;
mod verify;
