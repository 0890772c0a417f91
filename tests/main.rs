//! The integration tests: one binary, against real servers (`scripts/services up`).

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

mod bad_rows;
mod bench;
mod blocked_keys;
mod check;
mod claims;
mod commands;
mod content;
mod crashes;
mod dead_letters;
mod demo;
mod failures_page;
mod held_topics;
mod huge_rows;
mod kafka_away;
mod locked_rows;
mod marks;
mod memory;
mod migrate;
mod once;
mod ordinary;
mod partition;
mod pauses;
mod plan;
mod pooler;
mod probes;
mod promises;
mod record_size;
mod reload;
mod secrets;
mod service;
mod support;
mod takeover;
mod taking_turns;
mod unit_file;
mod watchdog;
