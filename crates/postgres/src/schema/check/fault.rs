//! Faults of the schema, with remedies.

use std::fmt;

use crate::connection::server_error::ServerError;

/// A fault of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFault {
    /// The kind.
    pub kind: SchemaFaultKind,
    /// The server, the table or the column.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// What to do, usually a statement to run.
    pub remedy: String,
}

/// The kind of a [`SchemaFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaFaultKind {
    /// The server is too old.
    Version,
    /// The server is a standby. After a failover, it may become the primary.
    Standby,
    /// The encoding of the database is not UTF8.
    Encoding,
    /// The recorded migrations do not match.
    Migration,
    /// A migration is pending, so the schema is older than this version. Other faults may be its consequences.
    Pending,
    /// A relation is missing or has the wrong kind.
    Relation,
    /// A column of the outbox is wrong.
    Column,
    /// The pending index is missing or wrong.
    Index,
    /// The sequence of the ids is wrong.
    Sequence,
    /// The rows of the lane table are wrong.
    Lanes,
    /// The version of the holds, or the trigger that raises it, is missing.
    Holds,
    /// Row-level security hides rows.
    RowSecurity,
    /// A privilege is missing.
    Grant,
}

/// Why [`check`](super::check) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// All faults of the schema.
    #[error("the database cannot be used:{}", list(.0))]
    Faults(Vec<SchemaFault>),
    /// The server or the connection failed, so the schema could not be checked.
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
