//! Errors of a measurement.

use crate::postgres::schema::SchemaError;
use outbox_relay::postgres::schema::migrate::MigrateError;
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
        /// The reason.
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

impl From<SchemaError> for BenchError {
    fn from(error: SchemaError) -> BenchError {
        match error {
            SchemaError::Fault(fault) => BenchError::Postgres(fault),
            denied @ SchemaError::Denied => BenchError::Configuration(denied.to_string()),
            SchemaError::Migrate(MigrateError::Server { source, .. }) => {
                BenchError::Configuration(format!("creating the scratch outbox: {source}"))
            }
            SchemaError::Migrate(error) => BenchError::Configuration(error.to_string()),
        }
    }
}
