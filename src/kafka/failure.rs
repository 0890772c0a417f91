//! From an error code to what happens: the one table. A code that is not listed is unknown.

use crate::relay::failure::{Failure, FailureKind};
use crate::relay::judge::REJECTS_EVERYTHING;
use crate::relay::session::STUCK;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// What this error code says, and about what.
pub fn classify(code: RDKafkaErrorCode) -> (FailureKind, &'static str) {
    use FailureKind::{Cluster, Row, Session, Topic, Unknown};
    use RDKafkaErrorCode as Code;
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            (Row, "record-too-large")
        }
        Code::InvalidRecord => (Row, "invalid-record"),
        Code::InvalidTimestamp => (Row, "invalid-timestamp"),
        Code::InvalidTopic => (Row, "invalid-topic-name"),

        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
            (Topic, "unknown-topic")
        }
        Code::TopicAuthorizationFailed => (Topic, "topic-authorization"),
        Code::PolicyViolation => (Topic, "policy-violation"),

        Code::Authentication | Code::SaslAuthenticationFailed => (Cluster, "authentication"),
        Code::UnsupportedSASLMechanism | Code::IllegalSASLState => (Cluster, "authentication"),
        Code::ClusterAuthorizationFailed => (Cluster, "cluster-authorization"),
        Code::SSL => (Cluster, "tls"),
        Code::AllBrokersDown | Code::Resolve => (Cluster, "brokers-down"),

        Code::Fatal | Code::GaplessGuarantee | Code::Inconsistent => (Session, "fatal-producer-error"),
        Code::OutOfOrderSequenceNumber | Code::UnknownProducerId => (Session, "producer-state-lost"),
        Code::InvalidProducerEpoch | Code::InvalidProducerIdMapping | Code::Fenced => {
            (Session, "producer-state-lost")
        }

        _ => (Unknown, "unknown"),
    }
}

/// A failure out of a client error. `what` says what was tried.
pub(super) fn failure(what: &str, error: &KafkaError) -> Failure {
    let (kind, reason) = error.rdkafka_error_code().map_or((FailureKind::Unknown, "unknown"), classify);
    Failure { kind, reason, error: format!("{what}: {error}") }
}

/// What a person can do about a topic that is held for this reason.
pub fn remedy(reason: &str) -> &'static str {
    match reason {
        "unknown-topic" => "create the topic, or delete the rows if their aggregate_type is a mistake",
        "topic-authorization" => "allow the relay's Kafka user to Write to and Describe the topic",
        "policy-violation" => "look at the broker's policy for the topic",
        STUCK => {
            "look for partitions of the topic without a leader or with fewer in-sync replicas than min.insync.replicas; \
             the relay goes on by itself when they have them"
        }
        REJECTS_EVERYTHING => {
            "look at the topic's limits and validators, such as max.message.bytes and schema checks; the relay goes on by \
             itself when the topic takes an event again. If the events are wrong, raise [outbox] rejections_before_hold, \
             restart the relays, and delete the topic's row from the table of holds"
        }
        _ => "look at the topic's partitions and leaders; the relay goes on by itself when it works",
    }
}
