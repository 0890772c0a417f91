//! The way from a committed row to Kafka: claims, order, plans and memory.

mod claims;
mod locked_rows;
mod looks;
mod marks;
mod memory;
mod once;
mod ordinary;
mod plan;
mod planned;
mod pooler;
mod reaper;
mod taking_turns;
mod unrecorded;
