//! `outbox-bench`: measures a relay on your own servers, in a scratch schema and on scratch topics.
//!
//! ```text
//!   Place::create ─▶ route ─▶ fill ─▶ Relay::start ─▶ drain::watch ─▶ Relay::stop ─▶ verify::read ─▶ close ─▶ remove
//! ```
//!
//! [`place`] describes the servers, and [`relay`] the measured program, which is a separate process. The measurements
//! know only a [`subject::Subject`] and its processes, so that they work for other programs, too. [`usage`] reads what
//! processes use, and [`verify`] compares the records with the committed rows.
//!
//! The library has two other users: `benchmarks/`, which compares the relay with Debezium, and `demo/`, which uses the
//! [`checker`] and the [consumer](kafka::consume).
//!
//! Everything runs on one thread, in a [`tokio::task::LocalSet`], as in [`outbox_relay::cli::block_on`]. Dropping a
//! future cancels the measurement. The [`place::Place`] remains and must be removed.

pub mod advice;
pub mod checker;
pub mod cli;
pub mod drain;
pub mod error;
pub mod flow;
pub mod idle;
pub mod kafka;
pub mod latency;
pub mod limits;
pub mod metrics;
pub mod parties;
pub mod place;
pub mod plan;
pub mod postgres;
mod proc;
pub mod program;
pub mod relay;
pub mod report;
pub mod rows;
pub mod settings;
pub mod site;
pub mod steady;
pub mod subject;
pub mod usage;
pub mod verify;
pub mod writers;

pub use crate::postgres::load::{BYTES_LEAST, Prepared, Shape};
pub use error::BenchError;
