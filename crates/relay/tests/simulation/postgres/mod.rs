//! The model of PostgreSQL.

pub mod claim;
pub mod connection;
mod queries;
pub mod reaper;
pub mod scout;
pub mod server;
pub mod tables;
pub mod wrong_marks;

pub use tables::{Change, Row, Scope};
