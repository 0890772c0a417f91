//! Everything that is SQL.
//!
//! [`cycle::claim`] and `settle` are the cycle's two halves, [`cycle::statements`] their text; [`cycle::lookout`] is the scout's eye.

pub mod access;
pub mod connection;
pub mod cycle;
pub(crate) mod diagnose;
pub(crate) mod operate;
pub mod payload;
pub mod schema;
pub mod table;
