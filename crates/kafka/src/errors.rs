//! Maps every error code of librdkafka and the brokers to its reason.
//!
//! Doubtful codes are never the row's fault, and never mean that a record is stored. "Invalid message" (2) is a checksum
//! mismatch. "Invalid timestamp" (32) is about clocks, because records carry the time of sending. "Invalid topic" (17) is
//! about internal topics, whose names are valid. "Duplicate sequence number" (46) does not tell which record is stored.

use rdkafka::error::RDKafkaErrorCode::{self as Code, *};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use relay::failure::KafkaFailure;
use relay::reason::*;

/// The error codes of each reason that has any.
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
    (&UNEXPECTED, NOT_FOR_PRODUCERS),
];

/// Codes for consumers, transactions, administration and communication between brokers.
const NOT_FOR_PRODUCERS: &[Code] = &[
    PartitionEOF,
    WaitingForCoordinator,
    UnknownGroup,
    InProgress,
    PreviousInProgress,
    ExistingSubscription,
    AssignPartitions,
    RevokePartitions,
    Conflict,
    NoOffset,
    Outdated,
    KeySerialization,
    ValueSerialization,
    KeyDeserialization,
    ValueDeserialization,
    ReadOnly,
    NoEnt,
    InvalidType,
    PollExceeded,
    Application,
    AssignmentLost,
    Noop,
    AutoOffsetReset,
    LogTruncation,
    OffsetOutOfRange,
    InvalidMessageSize, // of a fetch
    StaleControllerEpoch,
    OffsetMetadataTooLarge,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    UnknownMemberId,
    InvalidSessionTimeout,
    RebalanceInProgress,
    InvalidCommitOffsetSize,
    GroupAuthorizationFailed,
    TopicAlreadyExists,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidReplicaAssignment,
    InvalidConfig,
    NotController,
    InvalidRequest,
    InvalidTransactionTimeout,
    ConcurrentTransactions,
    TransactionCoordinatorFenced,
    TransactionalIdAuthorizationFailed,
    SecurityDisabled,
    OperationNotAttempted,
    ReassignmentInProgress,
    DelegationTokenAuthDisabled,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    DelegationTokenAuthorizationFailed,
    DelegationTokenExpired,
    InvalidPrincipalType,
    NonEmptyGroup,
    GroupIdNotFound,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    ListenerNotFound,
    TopicDeletionDisabled,
    StaleBrokerEpoch,
    OffsetNotAvailable,
    MemberIdRequired,
    PreferredLeaderNotAvailable,
    GroupMaxSizeReached,
    FencedInstanceId,
    EligibleLeadersNotAvailable,
    ElectionNotNeeded,
    NoReassignmentInProgress,
    GroupSubscribedToTopic,
    UnstableOffsetCommit,
    ThrottlingQuotaExceeded, // of administration: a producer is slowed down and gets no error
    ResourceNotFound,
    DuplicateResource,
    UnacceptableCredential,
    InconsistentVoterSet,
    InvalidUpdateVersion,
    FeatureUpdateFailed,
    PrincipalDeserializationFailure,
    FencedMemberEpoch,
    UnreleasedInstanceId,
    UnsupportedAssignor,
    StaleMemberEpoch,
    UnknownSubscriptionId,
    TelemetryTooLarge,
];

/// The reason of this error code, or unknown if the table does not list it.
pub fn reason(code: RDKafkaErrorCode) -> &'static Reason {
    CODES.iter().find(|(_, codes)| codes.contains(&code)).map_or(&UNKNOWN, |(reason, _)| *reason)
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
    use rdkafka::types::RDKafkaRespErr;
    use relay::failure::FailureKind;
    use std::collections::HashMap;

    /// Markers in librdkafka's list.
    const NO_CODES: [Code; 3] = [Begin, End, EndAll];

    fn known() -> impl Iterator<Item = Code> {
        let numbers = i32::from(i16::MIN)..=i32::from(i16::MAX);
        let codes = numbers.filter_map(|number| RDKafkaRespErr::try_from(number).ok()).map(Code::from);
        codes.filter(|code| !NO_CODES.contains(code))
    }

    #[test]
    fn every_code_that_the_client_knows_is_listed_once() {
        let mut listed: HashMap<i32, usize> = HashMap::new();
        for code in CODES.iter().flat_map(|(_, codes)| codes.iter()) {
            *listed.entry(*code as i32).or_default() += 1;
        }
        let forgotten: Vec<Code> = known().filter(|code| !listed.contains_key(&(*code as i32))).collect();
        assert!(forgotten.is_empty(), "not listed: {forgotten:?}");
        let twice: Vec<_> = listed.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "listed more than once: {twice:?}");
        assert_eq!(listed.len(), known().count());
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
        let guilty = [MessageSizeTooLarge, MessageBatchTooLarge, InvalidRecord, InvalidDifferentRecord];
        assert_eq!(of(FailureKind::Row), guilty);
        assert!(of(FailureKind::Unknown).contains(&NoError), "an error without a code is no acknowledgement");
    }

    #[test]
    fn a_code_that_is_not_listed_is_unknown() {
        assert_eq!(*reason(End), UNKNOWN);
        let without_code = failure("testing", &KafkaError::Canceled);
        assert_eq!((without_code.kind, without_code.reason), (FailureKind::Unknown, "unknown"));
    }
}
