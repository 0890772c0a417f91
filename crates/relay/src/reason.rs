//! The reasons why Kafka did not acknowledge something, each with its meaning and its remedy.
//!
//! A reason has one kind, which decides what the relay does. `crates/kafka/src/errors.rs` maps error codes
//! to reasons; `docs/error-codes.md` shows both tables.

use crate::{FailureKind, KafkaFailure, Rejection};

/// Why something was not acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    /// The word that logs, `status`, holds and dead letters show.
    pub word: &'static str,
    pub kind: FailureKind,
    pub means: &'static str,
    /// What an operator can do: an imperative, or a sentence that begins with `NO_ACTION`. Without a full stop.
    pub remedy: &'static str,
}

impl Reason {
    /// A failure for this reason. `error` never contains a payload.
    pub fn failure(&self, error: impl Into<String>) -> KafkaFailure {
        KafkaFailure { kind: self.kind, reason: self.word, error: error.into() }
    }

    /// The rejection of a row, or the hold of a topic, for this reason.
    pub fn rejection(&self, error: impl Into<String>) -> Rejection {
        Rejection { reason: self.word, error: error.into() }
    }
}

/// Defines each reason as a constant and the list of all of them.
macro_rules! reasons {
    ($($constant:ident = $kind:ident, $word:literal, $means:literal, $remedy:literal;)*) => {
        $(#[doc = $means] pub const $constant: Reason =
            Reason { word: $word, kind: FailureKind::$kind, means: $means, remedy: $remedy };)*

        /// All reasons, by kind.
        pub const REASONS: &[&Reason] = &[$(&$constant),*];
    };
}

reasons! {
    RECORD_TOO_LARGE = Row, "record-too-large",
        "the record is larger than the topic's limit, or than `message.max.bytes` in `[kafka.properties]`",
        "increase the topic's max.message.bytes and, for events above 1 MB, message.max.bytes in [kafka.properties]; \
         or send smaller events";
    INVALID_RECORD = Row, "invalid-record",
        "the brokers rejected the record as invalid",
        "check the broker log, and fix the event or the topic's settings";
    OTHER_RECORD_REFUSED = Row, "other-record-refused",
        "the record was not stored because another record of the same request is invalid. A record that is sent \
         alone never fails for this reason",
        "no action is needed for this event. Check the event that was rejected";
    INVALID_HEADERS = Row, "invalid-headers",
        "`headers` is not a flat JSON object of strings and base64 values, or uses a reserved name. Detected before the event \
         is sent",
        "fix the writer. To send the events, correct their headers with the options of `outbox-relay dead-letters requeue`. If a \
         gap in a key is worse than a delay, set [outbox] on_rejected = \"block-key\"";
    INVALID_TOPIC_NAME = Row, "invalid-topic-name",
        "the topic name that `[outbox] topic` yields for the event is invalid. Detected before the event is sent",
        "fix the aggregate_type or event_type in the writer, or the template in [outbox] topic";
    TOPIC_NOT_ALLOWED = Row, "topic-not-allowed",
        "the column `topic` of the event names a topic that is not in `[outbox] topic_allow`. Detected before the event \
         is sent",
        "fix the topic in the writer, or add the topic to [outbox] topic_allow and restart the relays, then run \
         `outbox-relay dead-letters requeue`";
    UNREADABLE_ROW = Row, "unreadable-row",
        "PostgreSQL cannot read the row, for example because its TOAST data is damaged or the text of a `jsonb` \
         exceeds 1 GB. If the row cannot be moved to the dead letters, it blocks its key",
        "restore the row from a backup with an UPDATE, or delete it, then run `outbox-relay blocked-keys retry`. \
         Check the server log for other damaged data";

    UNKNOWN_TOPIC = Topic, "unknown-topic",
        "the topic or partition does not exist, or the relay's Kafka user is not allowed to describe it",
        "create the topic. If the aggregate_type or event_type of the rows is a mistake, delete them and the topic's row in outbox_hold";
    TOPIC_AUTHORIZATION = Topic, "topic-authorization",
        "the relay's Kafka user is not allowed to write to the topic",
        "grant the relay's Kafka user Write and Describe on the topic";
    POLICY_VIOLATION = Topic, "policy-violation",
        "a broker policy rejected the record",
        "check the broker's policy for the topic";
    INVALID_TOPIC = Topic, "invalid-topic",
        "the name is valid, but the brokers do not accept records for it (an internal topic)",
        "choose another name with [outbox] topic, or delete the rows if their types are a mistake";
    INVALID_TIMESTAMP = Topic, "invalid-timestamp",
        "the brokers reject the record timestamp (the time of sending)",
        "check the clocks of the relay's host and the brokers, and the topic's message.timestamp.* settings";
    UNSUPPORTED_FORMAT = Topic, "unsupported-format",
        "the topic's message format does not support headers or this compression",
        "use a newer message format for the topic, or choose another compression.type in [kafka.properties]";
    STUCK = Topic, "stuck",
        "the topic exists but acknowledges no records",
        "no action is needed unless this persists. In that case, check the topic for partitions without a leader or \
         with fewer in-sync replicas than min.insync.replicas, and check that this relay can connect to the leaders of \
         its partitions. If its events are large and the network is slow, increase socket.timeout.ms in [kafka.properties]";
    REJECTS_EVERYTHING = Topic, "rejects-everything",
        "many events of the topic were rejected in a row, so the cause is probably the topic or the writer",
        "if the error is about the topic, check its limits and validators, such as max.message.bytes and schema checks. If it is \
         about the events, fix the writer, then correct or delete the events that wait. Publishing resumes when an event is \
         accepted. docs/dead-letters.md (Topics that reject everything) has the steps";

    AUTHENTICATION = Cluster, "authentication",
        "authentication with the brokers failed",
        "check security.protocol, sasl.* and the credentials in [kafka.properties], [kafka.oauth] or [kafka.aws]. \
         Files are reloaded at each attempt, systemd credentials only at a restart";
    TOKEN = Cluster, "token",
        "there is no token to log in with",
        "check [kafka.oauth] and the identity provider, or [kafka.aws] and the AWS credentials. The client secret file \
         is reloaded at each attempt, a systemd credential only at a restart";
    CLUSTER_AUTHORIZATION = Cluster, "cluster-authorization",
        "the relay's Kafka user is not allowed to publish",
        "grant the relay's Kafka user IdempotentWrite on the cluster (brokers before 2.8), or Write on at least one \
         topic";
    TLS = Cluster, "tls",
        "the TLS connection failed",
        "check ssl.* in [kafka.properties], the brokers' certificates and their validity, and the client \
         certificate if the brokers require one. Files are reloaded at each attempt, systemd credentials only at a restart";
    BROKERS_DOWN = Cluster, "brokers-down",
        "no broker is reachable",
        "check [kafka] bootstrap_servers, security.protocol in [kafka.properties], the brokers and the network";
    ADVERTISED_ADDRESS = Cluster, "advertised-address",
        "the brokers answer at `bootstrap_servers`, but this host cannot resolve or reach an address that they advertise, \
         which every client uses afterwards",
        "set advertised.listeners of the broker to an address that this host can resolve and reach, or fix DNS or the \
         firewall";
    CONFIGURATION = Cluster, "configuration",
        "the Kafka client rejects the settings",
        "fix [kafka.properties] as the error describes. For details, run `outbox-relay check-config`";
    INCOMPATIBLE_BROKER = Cluster, "incompatible-broker",
        "the brokers do not support the required protocol version",
        "use Kafka 2.1 or later, and check for an older proxy between the relay and the brokers";

    OTHER_CLUSTER = Cluster, "other-cluster",
        "this is not the Kafka cluster that the outbox belongs to. The relay stops",
        "set the right brokers in [kafka] bootstrap_servers. If the outbox has moved to this cluster, run \
         `outbox-relay confirm --kafka`";
    CLUSTER_UNCONFIRMED = Cluster, "cluster-unconfirmed",
        "the ID of the Kafka cluster could not be compared with the recorded one, because PostgreSQL did not answer",
        "no action is needed unless this persists. In that case, check PostgreSQL";

    FATAL_PRODUCER_ERROR = Session, "fatal-producer-error",
        "this producer can no longer guarantee order, and rejects all further records",
        "no action is needed unless this recurs. In that case, check the log for an earlier failure";
    PRODUCER_STATE_LOST = Session, "producer-state-lost",
        "the partition's leader no longer knows this producer or its sequence",
        "no action is needed unless this recurs. In that case, check producer.id.expiration.ms, and whether topics \
         are deleted and recreated";
    SILENT_CONNECTION = Session, "silent-connection",
        "a connection of this producer no longer returns responses",
        "no action is needed unless this recurs. In that case, check for a load balancer, a firewall or NAT that drops idle \
         connections without closing them, and lower connections.max.idle.ms in [kafka.properties]";
    SMALLER_BATCHES = Session, "smaller-batches",
        "a topic accepts only smaller requests than this producer sends",
        "no action is needed. The next producer sends smaller requests";

    CONNECTION_LOST = Unknown, "connection-lost",
        "the connection was lost before a response arrived",
        "no action is needed unless this persists. In that case, check the network and the brokers";
    NO_ANSWER = Unknown, "no-answer",
        "the request timed out",
        "no action is needed unless this persists. In that case, check for an overloaded broker or lagging replicas";
    LEADER_MOVING = Unknown, "leader-moving",
        "the partition has no leader, or its leader has changed",
        "no action is needed unless this persists. In that case, check for partitions without a leader";
    TOO_FEW_REPLICAS = Unknown, "too-few-replicas",
        "fewer replicas are in sync than min.insync.replicas requires. The record may have been stored",
        "restore the partition's other replicas";
    BROKER_FAILED = Unknown, "broker-failed",
        "the broker had an internal error, for example a disk error",
        "check the broker's log and disks";
    TAKEN_BACK = Unknown, "taken-back",
        "the relay or its client withdrew the record after another failure",
        "find the earlier failure in the log";
    CLIENT_FAILED = Unknown, "client-failed",
        "the Kafka client had an internal error or could not parse a response",
        "check whether the host has run out of memory, file descriptors or threads. If not, report a bug in \
         outbox-relay, with the log at level debug";
    NO_OFFSET = Unknown, "no-offset",
        "a success without an offset: Kafka may have treated the record as a duplicate",
        "no action is needed. The relay sends the event again";
    UNEXPECTED = Unknown, "unexpected",
        "an error code of an operation that the relay does not use, such as consuming or administration",
        "report a bug in outbox-relay, with the log at level debug";
    UNKNOWN = Unknown, "unknown",
        "an error without a code, or no acknowledgement in time",
        "no action is needed unless this persists. In that case, run `outbox-relay doctor`: partitions may have no leader, or \
         fewer in-sync replicas than min.insync.replicas. Also check the broker logs";
}

/// The error of a topic that the list of all topics does not have.
pub(crate) fn not_listed(topic: &str) -> String {
    format!("topic {topic} is not among the topics that the relay's Kafka user can describe")
}

/// The reason with this word; `None` for a word of another version.
pub fn reason(word: &str) -> Option<&'static Reason> {
    REASONS.iter().copied().find(|reason| reason.word == word)
}

pub fn remedy(word: &str) -> &'static str {
    reason(word).map_or("check the brokers and their logs", |reason| reason.remedy)
}

/// How a remedy begins if the cause usually passes by itself.
pub const NO_ACTION: &str = "no action is needed";

/// A remedy as the last sentence of a message, without a full stop.
pub fn fix(remedy: &str) -> String {
    match remedy.strip_prefix(NO_ACTION) {
        Some(rest) => format!("No action is needed{rest}"),
        None => format!("Fix: {remedy}"),
    }
}

/// What an operator can do about a key that is blocked for this reason.
pub fn blocked_key_remedy(reason: &str) -> &'static str {
    match reason {
        "record-too-large" => {
            "raise the topic's max.message.bytes (and message.max.bytes in [kafka.properties]), then run \
             `outbox-relay blocked-keys retry`; or run `outbox-relay blocked-keys dead-letter`"
        }
        "invalid-topic-name" | "invalid-headers" => {
            "run `outbox-relay blocked-keys dead-letter`, or correct the row and run `outbox-relay blocked-keys retry`"
        }
        _ => {
            "fix the cause of the error, then run `outbox-relay blocked-keys retry`; or run `outbox-relay \
             blocked-keys dead-letter`"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_has_a_unique_word_a_meaning_and_a_remedy() {
        let mut words = HashSet::new();
        for reason in REASONS {
            let word = reason.word;
            assert!(words.insert(word), "{word} twice");
            assert!(word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{word}");
            for text in [reason.means, reason.remedy] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{word}: {text}");
            }
            assert_eq!(super::reason(word), Some(*reason));
        }
        assert!(!remedy("a word of another version").is_empty());
    }

    #[test]
    fn a_remedy_without_an_action_is_a_sentence() {
        assert_eq!(fix(remedy("unknown-topic")), format!("Fix: {}", UNKNOWN_TOPIC.remedy));
        let unknown = fix(remedy("unknown"));
        assert!(
            unknown.starts_with("No action is needed unless this persists. In that case, run"),
            "{unknown}"
        );
        assert!(REASONS.iter().all(|reason| !reason.remedy.starts_with("nothing")));
    }
}
