//! Why a table was not adopted.

use crate::connection::server_error::ServerError;
use crate::schema::check::{CheckError, SchemaFault};
use crate::schema::migrate::MigrateError;

/// Why a table was not adopted, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The table cannot be an outbox. Nothing was changed.
    #[error("{table} cannot be adopted, and nothing was changed:{}", list(faults))]
    Refused { table: String, faults: Vec<SchemaFault> },
    /// The table has rows, and it is not known whether they were sent. Nothing was changed.
    #[error(
        "{table} has rows, and no column that shows whether they were sent, so nothing was changed. To publish them, add \
         --existing-rows publish. To treat them as sent, add --existing-rows sent"
    )]
    ExistingRows { table: String },
    /// The migrations or the server failed.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// A step failed.
    #[error("{table}: cannot {step}: {source}. {remedy}")]
    Step { table: String, step: String, source: ServerError, remedy: &'static str },
    /// The table was changed, but is still not an outbox.
    #[error("{0}")]
    Check(#[from] CheckError),
    /// Another transaction has locked the table, so that it cannot be read. Nothing was changed.
    #[error(
        "{table} could not be read within 5 s, because another transaction has locked it, so nothing was changed. Run the \
         command again when the transaction has ended (see pg_stat_activity and pg_blocking_pids())"
    )]
    Locked { table: String },
    /// The table could not be read.
    #[error("{0}")]
    Server(ServerError),
}

impl From<tokio_postgres::Error> for AdoptError {
    fn from(error: tokio_postgres::Error) -> AdoptError {
        AdoptError::Server(error.into())
    }
}

fn list(faults: &[SchemaFault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}
