//! The codes of findings, with their severities and meanings. `docs/doctor.md` shows them, and a test compares.
//!
//! The words are stable, because scripts filter by them. A word that is no longer used must not be reused.

use super::Severity;

/// A kind of finding.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// The word to filter by.
    pub word: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it means for the events.
    pub means: &'static str,
}

/// Defines each code as a constant and the list of all of them.
macro_rules! codes {
    ($($constant:ident = $severity:ident, $word:literal, $means:literal;)*) => {
        $(#[doc = $means] pub static $constant: Code =
            Code { word: $word, severity: Severity::$severity, means: $means };)*

        /// All codes: the server, the schema, the role, the connection, Kafka, the events.
        pub static CODES: &[&Code] = &[$(&$constant),*];
    };
}

codes! {
    SERVER_TOO_OLD = Error, "server-too-old",
        "this version of PostgreSQL is not supported";
    STANDBY = Error, "standby",
        "the server is a standby, so the relay cannot claim or mark rows";
    ENCODING = Error, "encoding",
        "the encoding of the database is not UTF8: a single event whose text is not valid UTF-8 would make reads of \
         other events fail; the relay does not start";
    MIGRATION = Error, "migration",
        "the schema is missing or has a different version; the relay does not start, or waits for a pending \
         migration";
    SCHEMA_NEWER = Warning, "schema-newer",
        "a newer version migrated the schema; this version can run on it";
    RELATION = Error, "relation",
        "a table is missing or not durable; the relay does not start";
    COLUMN = Error, "column",
        "a column of the outbox is missing or has the wrong type; the relay does not start";
    PENDING_INDEX = Error, "pending-index",
        "without this index, each claim would sort the whole table; the relay does not start";
    CLAIM_PLAN = Error, "claim-plan",
        "with the current statistics, the claim does not use the pending index, so it becomes slower as the table \
         grows";
    INDEX_INVALID = Warning, "index-invalid",
        "the build of the index was interrupted; it serves no query and slows down every insert";
    INDEX_UNUSED = Note, "index-unused",
        "no query has used this index since the statistics were reset, and it slows down every insert and update";
    SEQUENCE = Error, "sequence",
        "IDs are not assigned in the order in which rows are inserted, so events of one key can be published out of \
         order; the \
         relay does not start";
    OUTBOX_TRIGGER = Warning, "outbox-trigger",
        "if the trigger suppresses the update, the relay publishes events that it cannot record as sent, and publishes them \
         again after each restart";
    OUTBOX_CONSTRAINT = Warning, "outbox-constraint",
        "if the constraint prevents the relay from setting sent_at or from deleting a row, the relay publishes events that it cannot record as \
         sent, and publishes them again after each restart, or sent events are never deleted";
    LANES = Error, "lanes",
        "events of a missing lane would never be sent; the relay does not start";
    HOLD_COUNT = Error, "hold-count",
        "changes to holds and blocked keys are not counted, so releasing them could reorder events; the relay does \
         not start";
    ROW_SECURITY = Error, "row-security",
        "rows may be hidden from the relay, and hidden events are never sent; the relay does not start";
    AUTOVACUUM_OFF = Warning, "autovacuum-off",
        "dead rows are never removed, so the table and its indexes grow without limit";
    WRAPAROUND = Warning, "wraparound",
        "more than a billion transactions have begun since the oldest one that vacuum has not frozen; PostgreSQL \
         accepts no writes at two billion, so applications could insert no events";
    AUTOVACUUM_LATE = Warning, "autovacuum-late",
        "vacuum starts so late that the table grows much larger than its live rows require";
    LONG_TRANSACTION = Warning, "long-transaction",
        "while this transaction is open, vacuum cannot remove rows that were sent after it began, so the table grows";
    PREPARED_TRANSACTION = Warning, "prepared-transaction",
        "a prepared transaction is still open: vacuum cannot remove rows that were sent after it began, so the table \
         grows";
    REPLICATION_SLOT = Warning, "replication-slot",
        "the slot of a standby prevents vacuum from removing sent rows, permanently if the standby no longer exists";

    GRANT_MISSING = Error, "grant-missing",
        "the role lacks a required privilege; the relay does not start";
    ROLE_SUPERUSER = Warning, "role-superuser",
        "anyone with the relay's password controls the whole server";
    ROLE_ATTRIBUTES = Warning, "role-attributes",
        "the role may create roles or databases, or read the write-ahead log, which the relay does not need";
    ROLE_OWNER = Warning, "role-owner",
        "the role owns the outbox, so it may change and drop it regardless of grants";
    EVENTS_CHANGEABLE = Warning, "events-changeable",
        "the role may change events of the application, but the relay only needs to set sent_at";
    OTHER_TABLES = Warning, "other-tables",
        "the role may use tables that do not belong to the outbox";
    OUTBOX_PRIVILEGES = Warning, "outbox-privileges",
        "a role has privileges on a table of the outbox that no printed role has: it can run code as roles that use the \
         table, empty it, or change what was recorded";
    SCHEMA_CREATE = Warning, "schema-create",
        "a role that may create tables and functions in this schema can trick other roles into running its code; the \
         relay and its commands set a search path of their own and check their tables, but other programs may not";
    ROLE_TIMEOUT = Note, "role-timeout",
        "a timeout set for the role or the server can end the relay's connections and checks; claims are not \
         affected because \
         they set their own timeouts";

    POOLER = Note, "pooler",
        "a pooler assigns server connections per transaction; its timeouts can end a claim and cannot be checked \
         from here";
    POOLER_PREPARED_STATEMENTS = Error, "pooler-prepared-statements",
        "the pooler does not keep prepared statements between transactions, but the relay uses them";
    TLS_OFF = Warning, "tls-off",
        "events, and possibly the password, are sent to PostgreSQL unencrypted";
    TLS_UNVERIFIED = Warning, "tls-unverified",
        "the connection to PostgreSQL is encrypted, but the server's identity is not verified";
    UNIX_SOCKET = Note, "unix-socket",
        "on a Unix socket, the server does not notice a relay that freezes while it receives a large result; the relay \
         keeps its lanes until it resumes or is killed";
    CLOCK_SKEW = Warning, "clock-skew",
        "the clocks of this machine and of PostgreSQL differ, so times in logs, rows and records cannot be compared";
    KAFKA_TLS_OFF = Warning, "kafka-tls-off",
        "events are sent to Kafka unencrypted";

    KAFKA_UNREACHABLE = Error, "kafka-unreachable",
        "this host cannot publish events now; topics were not checked";
    ADVERTISED = Error, "advertised-address",
        "this host cannot resolve or reach an address that a broker advertises, so events for its partitions wait";
    TOPIC_MISSING = Error, "topic-missing",
        "events for this topic wait until it exists";
    TOPIC_UNUSABLE = Error, "topic-unusable",
        "events for this topic wait until the error is resolved";
    TOPIC_HIDDEN = Note, "topic-settings-hidden",
        "the relay's Kafka user may not read the topic's settings, so they were not checked; the relay assumes \
         Kafka's \
         default for the maximum record size";
    PARTITION_UNAVAILABLE = Error, "partition-unavailable",
        "a partition currently accepts no events: it has no leader or too few in-sync replicas";
    REPLICATION_FACTOR = Warning, "replication-factor",
        "there is one copy of each record: if its broker loses its disk, sent events are lost";
    MIN_INSYNC_TOO_HIGH = Error, "min-insync-too-high",
        "every replica must acknowledge a record, so the topic accepts nothing while one broker is down, even for a \
         restart";
    MIN_INSYNC_TOO_LOW = Warning, "min-insync-too-low",
        "a record counts as stored when one broker has it: if that broker is lost before the others have copied it, \
         the event is lost";
    UNCLEAN_ELECTION = Warning, "unclean-leader-election",
        "a replica that lacks records can become the leader, and records that were acknowledged are then lost";
    PAYLOAD_ABOVE_TOPIC = Warning, "payload-above-topic-limit",
        "a waiting event is larger than the topic's maximum record size; unless compression makes it smaller, Kafka \
         rejects it";

    TOPIC_ABOVE_RELAY = Warning, "topic-limit-above-relay",
        "the topic accepts larger records than the relay sends; the relay rejects an event between the two limits, although \
         Kafka would accept it";

    EVENTS_REJECTED = Warning, "events-rejected",
        "events were rejected within the last hour and not requeued; if their writer or their topic is at fault, later events are \
         rejected too, until the relay holds the topic";
    EVENT_TOPIC_NOT_ALLOWED = Error, "event-topic-not-allowed",
        "the event names a topic that `topic_allow` does not contain, so it can never be sent; a relay moves it to \
         the dead letters or blocks its key";
    EVENT_TOPIC_NAME = Error, "event-topic-name",
        "the topic name is invalid, so the event can never be sent; a relay moves it to the dead letters or blocks \
         its key";
    EVENT_TOO_LARGE = Error, "event-too-large",
        "the event is larger than the producer's maximum record size, so it can never be sent; a relay moves it to \
         the dead letters or blocks its key";
    EVENT_HEADERS = Error, "event-headers",
        "the headers are not a flat JSON object of strings and base64 values, or contain a reserved name, so the event can \
         never be sent; a relay moves it to the dead letters or blocks its key";

    TOPIC_TEMPLATE_DIFFERS = Warning, "topic-template-differs",
        "another relay, or this one until it is restarted with the changed configuration, publishes to other \
         topics; applications that check \
         their outbox compare their template with the recorded one";
    TOPIC_TEMPLATE_UNRECORDED = Warning, "topic-template-unrecorded",
        "the relay cannot record its topic template and its clusters, so applications that check their outbox cannot \
         compare theirs, and a relay of a copy of the database is not stopped";

    OTHER_CLUSTER = Error, "other-cluster",
        "the outbox belongs to another PostgreSQL or Kafka cluster: this is a copy, or the outbox has moved; the relay \
         stops and publishes nothing";
    SYSTEM_HIDDEN = Note, "system-identifier-hidden",
        "the server does not show its system identifier, so a relay of a copy of the database is not stopped";
    RELAY_NOTE = Note, "relay-note",
        "the relay on this host is ready, and reports a change that consumers may notice";

    CHECK_SKIPPED = Note, "check-skipped",
        "this check could not run";
}

/// The code with this word.
pub fn code(word: &str) -> Option<&'static Code> {
    CODES.iter().copied().find(|code| code.word == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_a_unique_word_and_a_meaning() {
        let mut words = HashSet::new();
        for code in CODES {
            assert!(words.insert(code.word), "{} twice", code.word);
            assert!(code.word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", code.word);
            assert!(!code.means.is_empty() && !code.means.ends_with('.'), "{}", code.word);
            assert_eq!(super::code(code.word), Some(*code));
        }
    }
}
