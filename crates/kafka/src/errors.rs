//! Maps every error code of librdkafka and the brokers to its reason.
//!
//! Doubtful codes are never the row's fault, and never mean that a record is stored. "Invalid message" (2) is a checksum
//! mismatch. "Invalid timestamp" (32) is about clocks, because records carry the time of sending. "Invalid topic" (17) is
//! about internal topics, whose names are valid. "Duplicate sequence number" (46) does not tell which record is stored.

use rdkafka::error::RDKafkaErrorCode::{self as Code, *};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use relay::failure::KafkaFailure;
use relay::reason::*;
use tokio::task::spawn_blocking;

/// The error codes of each reason that has any. The others are unexpected: they are for consumers, transactions, administration
/// and communication between brokers. So is `ThrottlingQuotaExceeded`: a producer is slowed down and gets no error.
pub const CODES: &[(&Reason, &[Code])] = &[
    (&RECORD_TOO_LARGE, &[MessageSizeTooLarge, MessageBatchTooLarge]),
    (&INVALID_RECORD, &[InvalidRecord]),
    (&OTHER_RECORD_REFUSED, &[InvalidDifferentRecord]),
    (&UNKNOWN_TOPIC, &[UnknownTopic, UnknownPartition, UnknownTopicOrPartition, UnknownTopicId]),
    (&TOPIC_AUTHORIZATION, &[TopicAuthorizationFailed]),
    (&POLICY_VIOLATION, &[PolicyViolation]),
    (&INVALID_TOPIC, &[InvalidTopic]),
    (&INVALID_TIMESTAMP, &[InvalidTimestamp]),
    (&UNSUPPORTED_FORMAT, &[UnsupportedForMessageFormat, UnsupportedCompressionType]),
    (
        &AUTHENTICATION,
        &[Authentication, SaslAuthenticationFailed, UnsupportedSASLMechanism, IllegalSASLState],
    ),
    (&CLUSTER_AUTHORIZATION, &[ClusterAuthorizationFailed]),
    (&TLS, &[SSL]),
    (&BROKERS_DOWN, &[AllBrokersDown, Resolve]),
    (&INCOMPATIBLE_BROKER, &[UnsupportedFeature, UnsupportedVersion, InvalidRequiredAcks]),
    (&FATAL_PRODUCER_ERROR, &[Fatal, GaplessGuarantee, Inconsistent]),
    (
        &PRODUCER_STATE_LOST,
        &[
            OutOfOrderSequenceNumber,
            DuplicateSequenceNumber,
            UnknownProducerId,
            InvalidProducerEpoch,
            InvalidProducerIdMapping,
            InvalidTransactionalState,
            ProducerFenced,
            Fenced,
        ],
    ),
    (&CONNECTION_LOST, &[BrokerTransportFailure, Fail, NetworkException]),
    (&NO_ANSWER, &[MessageTimedOut, OperationTimedOut, TimedOutQueue, RequestTimedOut]),
    (
        &LEADER_MOVING,
        &[
            LeaderNotAvailable,
            NotLeaderForPartition,
            BrokerNotAvailable,
            ReplicaNotAvailable,
            FencedLeaderEpoch,
            UnknownLeaderEpoch,
            UnknownBroker,
            NodeUpdate,
            WaitCache,
            RebootstrapRequired,
        ],
    ),
    (&TOO_FEW_REPLICAS, &[NotEnoughReplicas, NotEnoughReplicasAfterAppend, ISRInsufficient]),
    (&BROKER_FAILED, &[Unknown, KafkaStorageError, InvalidMessage, LogDirNotFound]),
    (&TAKEN_BACK, &[PurgeQueue, PurgeInflight, BrokerDestroy, DestroyBroker, Retry]),
    (
        &CLIENT_FAILED,
        &[
            BadMessage,
            BadCompression,
            CriticalSystemResource,
            FileSystem,
            InvalidArgument,
            QueueFull,
            Partial,
            Underflow,
            Interrupted,
            State,
            NotConfigured,
            NotImplemented,
            UnknownProtocol,
        ],
    ),
    (&NO_OFFSET, &[NoError]),
];

/// All error codes that the client knows, in ascending order.
pub fn known() -> impl Iterator<Item = Code> {
    let is_marker = |code: &Code| [Begin, End, EndAll].contains(code);
    let numbers = i32::from(i16::MIN)..=i32::from(i16::MAX);
    let codes = numbers.filter_map(|number| RDKafkaRespErr::try_from(number).ok()).map(Code::from);
    codes.filter(move |code| !is_marker(code))
}

pub fn reason(code: Code) -> &'static Reason {
    CODES.iter().find(|(_, codes)| codes.contains(&code)).map_or(&UNEXPECTED, |(reason, _)| *reason)
}

/// Runs a function of librdkafka that blocks, on another thread. `what` is the action, for the error.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &str,
    call: impl FnOnce() -> KafkaResult<T> + Send + 'static,
) -> Result<T, KafkaFailure> {
    match spawn_blocking(call).await {
        Ok(result) => result.map_err(|error| failure(what, &error)),
        Err(error) => Err(KafkaFailure::unknown(format!("{what}: {error}"))),
    }
}

/// The failure of a client error. `what` is the action that failed.
pub fn failure(what: &str, error: &KafkaError) -> KafkaFailure {
    let text = match error {
        KafkaError::MessageProduction(code) => code.to_string(),
        error => error.to_string(),
    };
    error.rdkafka_error_code().map_or(&UNKNOWN, reason).failure(format!("{what} failed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::failure::FailureKind;

    /// If the client knows more codes, decide which of them a producer can get, then change the number.
    #[test]
    fn every_code_that_the_client_knows_is_listed_once_or_unexpected() {
        let listed: Vec<Code> = CODES.iter().flat_map(|(_, codes)| codes.iter().copied()).collect();
        for (at, code) in listed.iter().enumerate() {
            assert!(!listed[..at].contains(code), "listed more than once: {code:?}");
            assert!(known().any(|known| known == *code), "not known: {code:?}");
        }
        let unexpected: Vec<Code> = known().filter(|code| !listed.contains(code)).collect();
        assert_eq!(unexpected.len(), 91, "{unexpected:?}");
        assert!(unexpected.iter().all(|code| *reason(*code) == UNEXPECTED));
    }

    #[test]
    fn every_reason_is_listed_once() {
        for (at, (reason, codes)) in CODES.iter().enumerate() {
            assert!(!codes.is_empty(), "{}", reason.word);
            assert!(CODES[..at].iter().all(|(other, _)| other.word != reason.word), "{} twice", reason.word);
        }
    }

    /// A change of these could lose or dead-letter rows.
    #[test]
    fn only_these_codes_are_the_rows_fault_and_none_is_a_success() {
        let of = |kind: FailureKind| -> Vec<Code> {
            let rows = CODES.iter().filter(|(reason, _)| reason.kind == kind);
            rows.flat_map(|(_, codes)| codes.iter().copied()).collect()
        };
        assert_eq!(UNEXPECTED.kind, FailureKind::Unknown);
        let guilty = [MessageSizeTooLarge, MessageBatchTooLarge, InvalidRecord, InvalidDifferentRecord];
        assert_eq!(of(FailureKind::Row), guilty);
        assert!(of(FailureKind::Unknown).contains(&NoError), "an error without a code is no acknowledgement");
    }

    #[test]
    fn an_error_without_a_code_is_unknown() {
        let without_code = failure("testing", &KafkaError::Canceled);
        assert_eq!((without_code.kind, without_code.reason), (FailureKind::Unknown, "unknown"));
    }
}
