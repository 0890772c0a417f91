//! The simulator: the relay's own code, unchanged, in a seeded world of a modelled Postgres and Kafka, on a paused
//! clock. A failure prints the seed and the history; the same seed repeats it exactly.
//!
//! `SEED=… SCHEDULES=… cargo test --test simulation` looks elsewhere, or longer.

#![allow(clippy::unwrap_used)]

mod disasters;
mod event;
mod explore;
mod kafka;
mod people;
mod plan;
mod postgres;
mod process;
mod promises;
mod relays;
mod run;
mod sabotages;
mod schedules;
mod world;
