//! `outbox-bench`: measures a relay on your own servers, in a scratch schema and on scratch topics.
//!
//! ```text
//!   Place::create ─▶ route ─▶ fill ─▶ Relay::start ─▶ drain::watch ─▶ Relay::stop ─▶ verify::read ─▶ close ─▶ remove
//! ```
//!
//! [`place`] describes the servers, and [`processes::relay`] the measured program, which is a separate process. The
//! [`measurements`] know only a [`subject::Subject`] and its processes, so that they work for other programs, too.
//! [`processes::usage`] reads what processes use, and [`checking::verify`] compares the records with the committed rows.
//!
//! The library has two other users: `benchmarks/`, which compares the relay with Debezium, and `demo/`, which uses the
//! [`checking::checker`] and the [consumer](kafka::consume).
//!
//! Everything runs on one thread, in a [`tokio::task::LocalSet`], as in [`outbox_relay::cli::frame::block_on`]. Dropping a
//! future cancels the measurement. The [`place::Place`] remains and must be removed.

pub mod advice;
pub mod checking;
pub mod cli;
pub mod error;
pub mod kafka;
pub mod limits;
pub mod measurements;
pub mod place;
pub mod postgres;
pub mod processes;
pub mod report;
pub mod settings;
pub mod site;
pub mod subject;
pub mod writers;

pub use crate::postgres::load::{BYTES_LEAST, Prepared, Shape};
pub use error::BenchError;
