//! The integration tests: one binary, against real servers (`scripts/services up`).

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

mod check;
mod content;
mod crashes;
mod demo;
mod locked_rows;
mod marks;
mod migrate;
mod ordinary;
mod partition;
mod support;
mod takeover;
mod taking_turns;
