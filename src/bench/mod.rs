//! Measuring a relay on somebody's own servers, in a scratch schema and on scratch topics.
//!
//! ```text
//!   Place::create ─▶ route ─▶ fill ─▶ Relay::start ─▶ drain::watch ─▶ Relay::stop ─▶ verify::read ─▶ close ─▶ remove
//! ```
//!
//! [`place`] is where, [`relay`] what is measured, as a process of its own; what measures knows only a
//! [`subject::Subject`] and its processes, so that it measures other programs alike. [`usage`] reads what processes
//! cost, [`verify`] compares what arrived with what was committed.
//!
//! Everything here belongs to one thread: it wants a [`tokio::task::LocalSet`] on a runtime of one thread, as
//! [`crate::cli::block_on`] makes it. Whoever drops a future here gives the measurement up; the [`place::Place`] stays, and
//! has to be removed.

pub mod advice;
pub mod checker;
pub mod drain;
pub mod error;
pub mod flow;
pub mod idle;
pub mod latency;
pub mod limits;
pub mod metrics;
pub mod parties;
pub mod place;
pub mod plan;
mod proc;
pub mod relay;
pub mod report;
pub mod settings;
pub mod site;
pub mod steady;
pub mod subject;
pub mod usage;
pub mod verify;
pub mod writers;

pub use crate::postgres::bench::load::{BYTES_LEAST, Prepared, Shape};
pub use error::BenchError;
