//! The integration tests: one binary on real servers (`scripts/services up`).

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions; this covers what they call

mod delivery;
mod failures;
mod golden;
mod operating;
mod project;
mod rows;
mod schema;
mod service;
#[path = "../support/mod.rs"]
mod support;
