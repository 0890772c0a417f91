//! The simulator. It runs the relay's own code, unchanged, in a seeded world with a modeled PostgreSQL and Kafka, on a
//! paused clock. A failure prints the seed and the history. The same seed repeats it exactly.
//!
//! `SEED=… SCHEDULES=… cargo test --package outbox-relay-core --test simulation` runs different or more schedules.

#![allow(clippy::unwrap_used)]

extern crate outbox_relay_core as relay;

mod disasters;
mod event;
mod explore;
mod flows;
mod kafka;
mod plan;
mod postgres;
mod process;
mod promises;
mod relays;
mod run;
mod sabotages;
mod schedules;
mod topics;
mod users;
mod world;
