//! All SQL of the daemon.
//!
//! Start with [`cycle::claim`] and `cycle::settle`, the two halves of a cycle, and [`cycle::statements`], their text.

pub mod access;
mod columns;
pub mod connection;
pub mod cycle;
pub(crate) mod diagnose;
pub(crate) mod operate;
pub mod payload;
pub mod schema;
pub mod table;
