//! What is wrong with a schema, and why it could not be checked, migrated or adopted. Each error has a remedy.

use crate::connection::errors::ServerError;
use crate::table::TableName;
use std::fmt;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// How long a migration waits for another migration.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a statement that could not get its lock is run.
pub(crate) const DDL_ATTEMPTS: u32 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFault {
    pub kind: SchemaFaultKind,
    /// The server, the table or the column.
    pub place: String,
    pub problem: String,
    pub remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaFaultKind {
    Version,
    /// The server is a standby. After a failover, it may become the primary.
    Standby,
    Encoding,
    /// The recorded migrations do not match.
    Migration,
    /// A migration is pending, so the schema is older than this version. Other faults may be its consequences.
    Pending,
    /// A relation is missing or has the wrong kind.
    Relation,
    Column,
    /// The pending index is missing or wrong.
    Index,
    /// The sequence of the ids is wrong.
    Sequence,
    /// The rows of the lane table are wrong.
    Lanes,
    /// The version of the holds, or the trigger that raises it, is missing.
    Holds,
    RowSecurity,
    Grant,
}

/// Why [`check`](super::check::check) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("the database cannot be used:{}", list(.0))]
    Faults(Vec<SchemaFault>),
    #[error("the schema could not be checked: {0}")]
    Server(#[from] ServerError),
}

impl From<tokio_postgres::Error> for CheckError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error.into())
    }
}

impl SchemaFault {
    pub(crate) fn new(
        kind: SchemaFaultKind,
        place: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { kind, place: place.to_string(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for SchemaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}. Fix: {}", self.place, self.problem, self.remedy)
    }
}

pub(super) fn list(faults: &[SchemaFault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}

/// Why migrations could not be read or applied. The failed migration was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    #[error(
        "{table}: could not lock a table in {attempts} attempts, so nothing was changed. Another transaction holds \
         a lock on it (see pg_stat_activity and pg_blocking_pids()). A relay holds its lock while it waits for \
         Kafka: run `outbox-relay pause`, then this command again, then `outbox-relay resume`",
        attempts = DDL_ATTEMPTS
    )]
    InUse { table: String },
    #[error(
        "{table}: another migration did not end within {seconds} s, so nothing was changed (see \
         pg_stat_activity and pg_blocking_pids()). Run the command again when the other migration has ended"
    )]
    Locked { table: String, seconds: u64 },
    #[error("{table}: {source}. As the owner or a superuser, run: {grant}")]
    Denied { table: String, source: ServerError, grant: String },
    #[error(
        "{table}: migration {number} ({name}) was applied with different SQL (recorded sha256 {recorded}). Run the \
         outbox-relay version that applied it. Or, if the schema matches the output of `migrate --print`, correct \
         the checksum in the migration table"
    )]
    ChecksumDiffers { table: String, number: i32, name: String, recorded: String },
    #[error(
        "{table}: migration {number} ({name}) was applied by a newer outbox-relay. Migrations cannot be undone. \
         Upgrade this binary to {upgrade}"
    )]
    Newer { table: String, number: i32, name: String, upgrade: String },
    #[error("{table}: {source}, but no migration is recorded for it. {remedy}, and run the command again")]
    Exists {
        table: String,
        source: ServerError,
        /// How to resolve the conflict, without the full stop.
        remedy: &'static str,
    },
    #[error("{table}: {problem}, so it was not read, and nothing was changed. Fix: {remedy}")]
    Foreign { table: String, problem: String, remedy: String },
    #[error(
        "{table}: [outbox.columns] is set, so the table is an existing one, but it is not adopted yet. Run \
         `outbox-relay migrate --adopt {table}`. For a new table, remove [outbox.columns]"
    )]
    NotAdopted { table: String },
    #[error("{table}: {source}. Connect to the primary server")]
    ReadOnly { table: String, source: ServerError },
    #[error("{table}: the server is PostgreSQL {found}, which is not supported. Upgrade to 14 or later")]
    ServerTooOld { table: String, found: String },
    #[error("{table}: {source}. The failed step changed nothing. Fix the cause and run the command again")]
    Server { table: String, source: ServerError },
}

impl MigrateError {
    /// From an error of the server. `grant` is the statement for a missing privilege.
    pub(super) fn new(table: &str, source: ServerError, grant: impl FnOnce() -> String) -> Self {
        let table = table.to_owned();
        match source.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => Self::Locked { table, seconds: LOCK_TIMEOUT.as_secs() },
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Self::Denied { table, source, grant: grant() },
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Self::ReadOnly { table, source },
            _ => Self::Server { table, source },
        }
    }
}

/// An error of the server without a remedy of its own.
pub(super) fn failed(table: &TableName) -> impl Fn(tokio_postgres::Error) -> MigrateError + Copy + '_ {
    |error| MigrateError::new(&table.to_string(), error.into(), String::new)
}

/// Why a table was not adopted, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    #[error("{table} cannot be adopted, and nothing was changed:{}", list(faults))]
    Refused { table: String, faults: Vec<SchemaFault> },
    #[error(
        "{table} has rows, and no column that shows whether they were sent, so nothing was changed. To publish them, add \
         --existing-rows publish. To treat them as sent, add --existing-rows sent"
    )]
    ExistingRows { table: String },
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    #[error("{table}: cannot {step}: {source}. {remedy}")]
    Step { table: String, step: String, source: ServerError, remedy: &'static str },
    #[error("{0}")]
    Check(#[from] CheckError),
    #[error(
        "{table} could not be read within 5 s, because another transaction has locked it, so nothing was changed. Run the \
         command again when the transaction has ended (see pg_stat_activity and pg_blocking_pids())"
    )]
    Locked { table: String },
    #[error("{0}")]
    Server(ServerError),
}

impl From<tokio_postgres::Error> for AdoptError {
    fn from(error: tokio_postgres::Error) -> AdoptError {
        AdoptError::Server(error.into())
    }
}
