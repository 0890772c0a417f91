//! The tests of `outbox-bench` on real servers (`scripts/services up`).

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

mod bench;
mod command_line;
mod support;
