//! The words for what went wrong with Kafka, each with what it means and what a person does about it.
//!
//! A reason has one kind, and the kind alone decides what the relay does. Which error code has which reason is in
//! `kafka/codes.rs`; `docs/error-codes.md` shows both tables.

use crate::relay::failure::{Failure, FailureKind, Rejection};

/// Why something was not acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    /// What logs, `status`, holds and dead letters show, to filter by.
    pub word: &'static str,
    /// Decides what happens.
    pub kind: FailureKind,
    /// What it means.
    pub means: &'static str,
    /// What a person can do, as an imperative without a full stop.
    pub remedy: &'static str,
}

impl Reason {
    /// A failure for this reason. `error` is a sentence for a person and never holds a payload.
    pub fn failure(&self, error: impl Into<String>) -> Failure {
        Failure { kind: self.kind, reason: self.word, error: error.into() }
    }

    /// The rejection of a row, or the hold of a topic, for this reason.
    pub fn rejection(&self, error: impl Into<String>) -> Rejection {
        Rejection { reason: self.word, error: error.into() }
    }
}

/// Each reason is a constant, and all of them are in the list.
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
        "the record is larger than the topic, or `message.max.bytes` of `[kafka.properties]`, allows",
        "raise the topic's max.message.bytes and, above 1 MB, message.max.bytes of [kafka.properties], then requeue the event; or send smaller ones";
    INVALID_RECORD = Row, "invalid-record",
        "the brokers have looked at the record and refuse it",
        "look at the broker's log for what it found wrong, mend the event or the topic's settings, then requeue it";
    OTHER_RECORD_REFUSED = Row, "other-record-refused",
        "the record was not stored, because another one of the same request is invalid; judged alone it is never found guilty for this",
        "nothing for this event: look at the one that was refused";
    INVALID_HEADERS = Row, "invalid-headers",
        "`headers` is no flat JSON object of strings, or uses a name that is the relay's own; found before anything is sent",
        "mend the writer; to send the event all the same, insert it again with headers that fit";
    INVALID_TOPIC_NAME = Row, "invalid-topic-name",
        "`aggregate_type` makes a name that Kafka allows for no topic; found before anything is sent",
        "mend the writer's aggregate_type, or the template [outbox] topic";
    UNREADABLE_ROW = Row, "unreadable-row",
        "Postgres cannot read the row, for instance because its TOAST data is damaged, or because the text of a `jsonb` is above 1 GB; if the row cannot be moved to the dead letters either, it blocks its key",
        "restore the row from a backup with an UPDATE, or delete it, then run `outbox-relay blocked-keys retry`; look at the server's log for other damaged data";

    UNKNOWN_TOPIC = Topic, "unknown-topic",
        "the topic, or the partition, does not exist, or the relay's user may not see it",
        "create the topic, or delete the rows if their aggregate_type is a mistake";
    TOPIC_AUTHORIZATION = Topic, "topic-authorization",
        "the relay's user may not write to the topic",
        "allow the relay's Kafka user to Write to and Describe the topic";
    POLICY_VIOLATION = Topic, "policy-violation",
        "a policy of the brokers forbids it",
        "look at the broker's policy for the topic";
    INVALID_TOPIC = Topic, "invalid-topic",
        "the name is allowed, but the brokers take no records for it: an internal topic of Kafka's own",
        "choose another name with [outbox] topic, or delete the rows if their aggregate_type is a mistake";
    INVALID_TIMESTAMP = Topic, "invalid-timestamp",
        "the brokers find the time of the records, which is that of sending, too far off",
        "compare the clocks of the relay's host and the brokers, and the topic's message.timestamp.* settings";
    UNSUPPORTED_FORMAT = Topic, "unsupported-format",
        "the topic's format takes no records with headers, or not this compression",
        "raise the topic's message format, or choose another compression.type in [kafka.properties]";
    STUCK = Topic, "stuck",
        "the topic acknowledges nothing while others do",
        "look for partitions of the topic without a leader or with fewer in-sync replicas than min.insync.replicas; the relay goes on by itself when they have them";
    REJECTS_EVERYTHING = Topic, "rejects-everything",
        "the topic has rejected many records in a row, each sent alone, so the fault is hardly theirs",
        "look at the topic's limits and validators, such as max.message.bytes and schema checks; the relay goes on by itself when the topic takes an event again. If the events are wrong, raise [outbox] rejections_before_hold, reload the relays, and delete the topic's row from the table of holds";

    AUTHENTICATION = Cluster, "authentication",
        "the brokers do not accept who the relay says it is",
        "look at security.protocol, sasl.* and the credentials in [kafka.properties], or at [kafka.oauth]; files are read again at each attempt, credentials of systemd at a restart";
    TOKEN = Cluster, "token",
        "the token endpoint gives the relay no token to log in with",
        "look at [kafka.oauth] and at the identity provider; the file of the client secret is read again at each attempt, a credential of systemd at a restart";
    CLUSTER_AUTHORIZATION = Cluster, "cluster-authorization",
        "the relay's user has no right to publish at all",
        "allow the relay's Kafka user IdempotentWrite on the cluster (brokers before 3.0), or Write on a topic";
    TLS = Cluster, "tls",
        "no secure connection comes about",
        "look at ssl.* in [kafka.properties], the brokers' certificates and their dates, and at the client certificate if the brokers ask for one; files are read again at each attempt, credentials of systemd at a restart";
    BROKERS_DOWN = Cluster, "brokers-down",
        "no broker answers",
        "look at [kafka] bootstrap_servers, security.protocol in [kafka.properties], the brokers and the network between";
    BROKER_UNREACHABLE = Cluster, "broker-unreachable",
        "this relay cannot reach a broker that other relays reach; it leaves its work to them",
        "check the network between this relay's host and that broker: routes, firewalls, and the address that the broker advertises";
    CONFIGURATION = Cluster, "configuration",
        "the Kafka client cannot be made of the settings",
        "mend what the error names in [kafka.properties]; `outbox-relay check-config` says more";
    INCOMPATIBLE_BROKER = Cluster, "incompatible-broker",
        "the brokers do not speak what the relay needs",
        "use brokers of Kafka 2.1 or newer, and look whether a proxy in between is older";

    FATAL_PRODUCER_ERROR = Session, "fatal-producer-error",
        "this producer can no longer promise order, and refuses everything from here on",
        "nothing, unless it comes again and again: then look for the failure that the log has before it";
    PRODUCER_STATE_LOST = Session, "producer-state-lost",
        "the partition's leader does not know this producer, or its sequence, any more",
        "nothing, unless it comes again and again: then look at producer.id.expiration.ms, and for topics that are deleted and created";
    SMALLER_BATCHES = Session, "smaller-batches",
        "a topic takes smaller requests than this producer makes",
        "nothing: the next producer makes smaller ones";

    CONNECTION_LOST = Unknown, "connection-lost",
        "the connection broke before an answer came",
        "nothing, unless it lasts: then look at the network and the brokers";
    NO_ANSWER = Unknown, "no-answer",
        "no answer came in time",
        "nothing, unless it lasts: then look for a broker that is overloaded, or a partition whose replicas are behind";
    LEADER_MOVING = Unknown, "leader-moving",
        "the partition has no leader, or another one than the client knows",
        "nothing, unless it lasts: then look for partitions without a leader";
    TOO_FEW_REPLICAS = Unknown, "too-few-replicas",
        "fewer replicas are in sync than min.insync.replicas asks for; the record may have been stored",
        "bring the partition's other replicas back";
    BROKER_FAILED = Unknown, "broker-failed",
        "the broker met an error of its own, for instance of its disk",
        "look at the broker's log and disks";
    TAKEN_BACK = Unknown, "taken-back",
        "the relay, or its client, took the record back after another failure",
        "nothing: look at that other failure";
    CLIENT_FAILED = Unknown, "client-failed",
        "the Kafka client met an error of its own, or could not read an answer",
        "look whether the host lacks memory, files or threads; then report it with the log at level debug";
    NO_OFFSET = Unknown, "no-offset",
        "a success that names no offset: Kafka may have taken the record for one that it had already",
        "nothing";
    UNEXPECTED = Unknown, "unexpected",
        "a code about something that the relay does not do, such as consuming or administration",
        "report it, with the log at level debug";
    UNKNOWN = Unknown, "unknown",
        "any code that is not listed, and whatever ended without an answer",
        "nothing, unless it lasts: then look at the brokers' logs";
}

/// The reason of this word; `None` for a word of another version.
pub fn reason(word: &str) -> Option<&'static Reason> {
    REASONS.iter().copied().find(|reason| reason.word == word)
}

/// What a person can do about a failure for this reason.
pub fn remedy(word: &str) -> &'static str {
    reason(word).map_or("look at the brokers and their logs", |reason| reason.remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_has_a_word_of_its_own_a_meaning_and_a_remedy() {
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
}
