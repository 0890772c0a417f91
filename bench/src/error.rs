//! Why something could not be measured.

use crate::postgres::schema::SchemaError;
use outbox_relay::postgres::schema::migrate::MigrateError;
use outbox_relay::relay::failure::{Failure, Fault};
use outbox_relay::relay::reason::CONFIGURATION;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The settings, or what the role or the Kafka user may do, have to be mended.
    #[error("{0}")]
    Configuration(String),
    /// Postgres failed.
    #[error(transparent)]
    Postgres(#[from] Fault),
    /// Kafka failed. The failure says what was being done.
    #[error("{0}")]
    Kafka(Failure),
    /// What is measured did not do what it is measured for: it ended, or went silent.
    #[error("{0}")]
    Subject(String),
    /// The machine failed: a process could not be started, a file not be read.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl From<Failure> for BenchError {
    fn from(failure: Failure) -> BenchError {
        // Of a client that cannot be made of the settings: nothing was connected to.
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
                BenchError::Configuration(format!("making the scratch outbox: {source}"))
            }
            SchemaError::Migrate(error) => BenchError::Configuration(error.to_string()),
        }
    }
}
