//! What a failure is about, which decides what happens next.
//!
//! | Kind | What happens |
//! |---|---|
//! | unknown | the session is replaced, and its rows are claimed again from the first unsent one |
//! | row | the row is judged alone; if it is refused again, it becomes a dead letter |
//! | topic | the topic is held: its rows wait, other topics continue, and probes end the hold |
//! | cluster | nothing is claimed until a probe succeeds |
//! | session | the session is replaced |

use crate::reason::UNKNOWN;
use std::time::Duration;

#[derive(Clone, Debug, thiserror::Error)]
#[error("{error} (reason: {reason})")]
pub struct KafkaFailure {
    pub kind: FailureKind,
    /// A word to filter by, such as `unknown-topic`.
    pub reason: &'static str,
    /// The message. Never contains a payload.
    pub error: String,
}

/// The outcomes other than an acknowledgement. A code that no table lists is [`FailureKind::Unknown`]: never a success, and
/// never the row's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The record may or may not be stored.
    Unknown,
    /// Kafka refused this record, or another one of the same request.
    Row,
    /// Kafka refuses records for this topic.
    Topic,
    /// Nothing can be published at all.
    Cluster,
    /// This producer can publish nothing more.
    Session,
}

impl KafkaFailure {
    /// A failure after which the record may or may not be stored.
    pub fn unknown(error: impl Into<String>) -> KafkaFailure {
        UNKNOWN.failure(error)
    }
}

/// Why a row can never become a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    /// A word to filter by, such as `record-too-large`.
    pub reason: &'static str,
    /// The message. Never contains a payload.
    pub error: String,
}

impl From<KafkaFailure> for Rejection {
    fn from(failure: KafkaFailure) -> Rejection {
        Rejection { reason: failure.reason, error: failure.error }
    }
}

impl From<Rejection> for KafkaFailure {
    fn from(Rejection { reason, error }: Rejection) -> KafkaFailure {
        KafkaFailure { kind: FailureKind::Row, reason, error }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{doing} failed: {message}")]
pub struct PostgresFault {
    pub kind: FaultKind,
    pub doing: &'static str,
    /// The error of the server or the connection, without DETAIL, which would show the row.
    pub message: String,
}

/// How the relay reacts to a fault of the database. Each fault ends the claim, and none loses an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The connection failed: reconnect with backoff.
    Unavailable,
    /// Another session holds a lock: claim again, and skip the locked rows when settling.
    Contended,
    /// A probe of this relay has a row of the claim in flight: claim the other lanes.
    Probed,
    /// The server refuses the statement (permissions, schema, disk): retry with backoff until the cause is fixed.
    Refused,
    /// The server cannot process stored data: narrow a read down to the unreadable row. Otherwise as refused.
    Data,
    /// The statement timed out: claim fewer lanes or rows. Otherwise as refused.
    TimedOut,
}

impl FaultKind {
    /// Whether the connection can be used again: the server has refused one statement, for a reason outside the connection. A new
    /// connection may lead to another server, so marks would be discarded.
    pub fn keeps_connection(self) -> bool {
        matches!(self, FaultKind::Contended | FaultKind::TimedOut)
    }
}

/// Exponential backoff with full jitter: the wait is random between zero and a bound that doubles, so that relays that
/// failed together do not retry together.
pub struct Backoff {
    first: Duration,
    most: Duration,
    pub(crate) attempts: u32,
    random: fastrand::Rng,
}

impl Backoff {
    pub fn new(first: Duration, most: Duration, random: fastrand::Rng) -> Backoff {
        Backoff { first, most, attempts: 0, random }
    }

    pub fn next_wait(&mut self) -> Duration {
        let bound = self.first.saturating_mul(1 << self.attempts.min(20)).min(self.most);
        self.attempts = self.attempts.saturating_add(1);
        bound.mul_f64(self.random.f64())
    }

    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_bound_are_random_and_start_small_after_a_reset() {
        let most = Duration::from_secs(1);
        let mut backoff = Backoff::new(Duration::from_millis(10), most, fastrand::Rng::with_seed(7));
        let waits: Vec<_> = (0..200).map(|_| backoff.next_wait()).collect();
        assert!(waits.iter().all(|wait| *wait <= most));
        assert!(waits[100..].iter().any(|wait| *wait > most.mul_f64(0.9)));
        assert!(waits[100..].iter().any(|wait| *wait < most.mul_f64(0.1)));
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(10));
    }
}
