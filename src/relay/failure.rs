//! What a failure says about the row, the topic, the cluster or the session, and so what happens next.
//!
//! | kind | what happens |
//! |---|---|
//! | unknown | the session is replaced; the rows are claimed again from the first unsent one; nothing is counted against a row |
//! | row | the row is judged alone; if it is refused alone too, it moves to the dead letters |
//! | topic | the topic is held: its rows wait, all others flow, a probe finds when it works again |
//! | cluster | nothing is claimed until a probe succeeds |
//! | session | the session is replaced |

use crate::relay::reason::UNKNOWN;
use std::fmt;

/// Why Kafka did not acknowledge something.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Decides what happens.
    pub kind: FailureKind,
    /// A word to filter by, such as `unknown-topic`.
    pub reason: &'static str,
    /// A sentence for a person. Never holds a payload.
    pub error: String,
}

/// The five outcomes other than an acknowledgement. A code that no table lists is [`FailureKind::Unknown`]: never a
/// success, never the row's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The record may or may not be stored.
    Unknown,
    /// Kafka refuses this record, or another one of the same request.
    Row,
    /// Kafka refuses this topic's records.
    Topic,
    /// Nothing can be published at all.
    Cluster,
    /// This producer can publish nothing more.
    Session,
}

impl Failure {
    /// A failure that says nothing about where the record is.
    pub fn unknown(error: impl Into<String>) -> Failure {
        UNKNOWN.failure(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.error, self.reason)
    }
}

/// Why a row can never become a record: it moves to the dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    /// A word to filter by, such as `record-too-large`.
    pub reason: &'static str,
    /// A sentence for a person. Never holds a payload.
    pub error: String,
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Rejection {
        Rejection { reason: failure.reason, error: failure.error }
    }
}

/// What went wrong with the outbox's database.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {message}")]
pub struct Fault {
    /// Decides what happens.
    pub kind: FaultKind,
    /// What was being done.
    pub doing: &'static str,
    /// What the server or the connection said, without DETAIL, which would show the row.
    pub message: String,
}

/// What a fault of the database asks for. Each of them ends the claim, and none of them loses what Kafka has
/// acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No connection, or none any more: reconnect with backoff.
    Unavailable,
    /// Somebody else's lock stood in the way: claim again, and settle around the locked rows.
    Contended,
    /// The server refuses the statement (grants, schema, disk): back off until somebody has mended it.
    Refused,
    /// The server cannot process what is stored: in a read, a single row may be the reason, and is looked for. Otherwise
    /// as refused.
    Data,
    /// The statement took longer than it may: a read asks for fewer lanes. Otherwise as refused.
    TimedOut,
}
