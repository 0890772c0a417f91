//! `outbox-bench`: measures a relay on your own servers, in a scratch schema and on scratch topics.
//!
//! ```text
//!   Place::create ─▶ route ─▶ fill ─▶ Relay::start ─▶ drain::watch ─▶ Relay::stop ─▶ verify::read ─▶ close ─▶ remove
//! ```
//!
//! `place` describes the servers, and `relay` the measured program, which is a separate process. The measurements
//! (`drain`, `flow`, `steady`) know only a `Subject` and its processes, so that they work for other programs, too.
//! `usage` reads what processes use, and `verify` compares the records with the committed rows. `plan` lists the parts.
//!
//! Other programs measure for contributors: `outbox-benchmarks` compares the relay with Debezium ([`compare`]), and
//! `instructions` and the benchmark `per_row` measure the cost of one row without servers ([`per_row`]). The demo uses the
//! [`checker`] and the [consumer](consume).
//!
//! Everything runs on one thread, in a [`tokio::task::LocalSet`], as in [`outbox_relay::cli::frame::block_on`]. Dropping a
//! future cancels the measurement. The [`place::Place`] remains and must be removed.

mod advice;
pub mod checker;
pub mod cli;
pub mod compare;
pub mod consume;
mod drain;
mod fakes;
mod flow;
mod limits;
mod load;
pub mod per_row;
pub mod place;
mod plan;
mod proc;
mod relay;
mod report;
mod schema;
mod server;
pub mod settings;
mod steady;
mod table;
mod topics;
mod usage;
mod verify;
mod writers;

pub use crate::load::Shape;

use outbox_relay::relay::failure::{KafkaFailure, PostgresFault};
use outbox_relay::relay::reason::CONFIGURATION;

/// The reason why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The settings, or the privileges of the role or the Kafka user, must be fixed.
    #[error("{0}")]
    Configuration(String),
    /// PostgreSQL failed.
    #[error(transparent)]
    Postgres(#[from] PostgresFault),
    /// Kafka failed. The failure states which action failed.
    #[error("{0}")]
    Kafka(KafkaFailure),
    /// The measured program ended or stopped making progress.
    #[error("{0}")]
    Subject(String),
    /// A system call failed: a process could not be started, or a file could not be read.
    #[error("{doing}: {source}")]
    System {
        /// The action that failed.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl From<KafkaFailure> for BenchError {
    fn from(failure: KafkaFailure) -> BenchError {
        // The client could not be created from the settings, so there was no connection.
        if failure.reason == CONFIGURATION.word {
            return BenchError::Configuration(failure.error);
        }
        BenchError::Kafka(failure)
    }
}
