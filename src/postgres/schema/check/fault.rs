//! What is wrong with a schema, for a person who will mend it.

use std::fmt;

use crate::postgres::connection::server_error::ServerError;

/// One thing that is wrong: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFault {
    /// What it is about.
    pub kind: FaultKind,
    /// The server, the table or the column.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// What to do, most often the statement to run.
    pub remedy: String,
}

/// What a [`SchemaFault`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The server's version.
    Version,
    /// The server is a standby. It can pass by itself, when a failover ends.
    Standby,
    /// The database's encoding is not UTF8.
    Encoding,
    /// The record of the migrations.
    Migration,
    /// A relation is missing, or of the wrong kind.
    Relation,
    /// A column of the outbox.
    Column,
    /// The pending index.
    Index,
    /// The numbering of the ids.
    Sequence,
    /// The rows of the lane table.
    Lanes,
    /// The count of the holds' changes, or the trigger that keeps it.
    Holds,
    /// Row-level security hides rows.
    RowSecurity,
    /// A right is missing.
    Grant,
}

/// Why [`check`](super::check) did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The schema is not as it must be; every fault found.
    #[error("the schema is invalid:{}", list(.0))]
    Faults(Vec<SchemaFault>),
    /// The server or the connection failed during the check, which says nothing about the schema.
    #[error("the schema could not be checked: {0}")]
    Server(#[from] ServerError),
}

impl From<tokio_postgres::Error> for CheckError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error.into())
    }
}

impl SchemaFault {
    pub(super) fn new(
        kind: FaultKind,
        place: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { kind, place: place.to_string(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for SchemaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.problem, self.remedy)
    }
}

fn list(faults: &[SchemaFault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}
