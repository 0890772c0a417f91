//! The kinds of findings, each with its severity and what it means. `docs/doctor.md` shows them, and a test compares.
//!
//! The words are stable: scripts filter by them. One that is no longer found stays out of use.

use super::Severity;

/// A kind of finding.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// What it is filtered by.
    pub word: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it means for the events.
    pub means: &'static str,
}

/// Each code is a constant, and all of them are in the list.
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
        "this version of PostgreSQL lacks what the relay needs";
    STANDBY = Error, "standby",
        "a standby cannot be written to, so nothing can be claimed or marked there";
    ENCODING = Error, "encoding",
        "a single event whose text is not valid UTF-8 would make reads of other events fail; the relay does not start";
    MIGRATION = Error, "migration",
        "the schema is missing, or is not that of this version; the relay does not start";
    RELATION = Error, "relation",
        "a table is missing, or is of a kind that does not keep what is in it; the relay does not start";
    COLUMN = Error, "column",
        "a column of the outbox is missing, or is not what the relay reads; the relay does not start";
    PENDING_INDEX = Error, "pending-index",
        "without this index each claim would sort the whole table; the relay does not start";
    CLAIM_PLAN = Error, "claim-plan",
        "under the current statistics the claim does not read by the pending index, so it becomes slower as the table grows";
    INDEX_INVALID = Warning, "index-invalid",
        "what was interrupted while it was built serves no query, and costs every insert";
    INDEX_UNUSED = Note, "index-unused",
        "no query has read by this index since statistics began, and it costs every insert and every mark";
    SEQUENCE = Error, "sequence",
        "ids are not drawn in the order of the writers, so events of one key can be published out of order; the relay does not start";
    LANES = Error, "lanes",
        "events of a missing lane would never be sent; the relay does not start";
    HOLD_COUNT = Error, "hold-count",
        "changes of holds and blocked keys are not counted, so their end could reorder events; the relay does not start";
    ROW_SECURITY = Error, "row-security",
        "rows may be hidden from the relay, and hidden events are never sent; the relay does not start";
    AUTOVACUUM_OFF = Warning, "autovacuum-off",
        "sent rows are never cleared away: the table and its indexes grow without end";
    AUTOVACUUM_LATE = Warning, "autovacuum-late",
        "vacuum waits for so many dead rows that the table becomes much larger than what is in it";
    LONG_TRANSACTION = Warning, "long-transaction",
        "as long as this transaction is open, vacuum removes nothing that was sent since it began; the table grows";
    PREPARED_TRANSACTION = Warning, "prepared-transaction",
        "somebody prepared a transaction and did not end it: vacuum removes nothing that was sent since, and the relay's low-water mark waits for it, too";
    REPLICATION_SLOT = Warning, "replication-slot",
        "a standby, by its slot, asks to keep what was sent since; if it is gone, for ever";

    GRANT_MISSING = Error, "grant-missing",
        "the role may not do what the relay has to; the relay does not start";
    ROLE_SUPERUSER = Warning, "role-superuser",
        "whoever gets hold of the relay's password owns the whole server";
    ROLE_ATTRIBUTES = Warning, "role-attributes",
        "the role may make roles or databases, or read the write-ahead log, which the relay never does";
    ROLE_OWNER = Warning, "role-owner",
        "the role owns the outbox, so it may change and drop it, whatever is granted";
    EVENTS_CHANGEABLE = Warning, "events-changeable",
        "the role may change events that the application has written; the relay only ever sets sent_at";
    OTHER_TABLES = Warning, "other-tables",
        "the role may use tables that are none of the outbox's";
    ROLE_TIMEOUT = Note, "role-timeout",
        "a timeout of the role or server ends what the relay leaves open on purpose; no claim is lost by it, since each sets its own, but connections and checks are";

    POOLER = Note, "pooler",
        "a pooler gives each transaction another connection of the server; its own timeouts can end a claim, and cannot be seen from here";
    POOLER_PREPARED_STATEMENTS = Error, "pooler-prepared-statements",
        "the pooler forgets prepared statements between transactions, and the relay prepares its own";
    TLS_OFF = Warning, "tls-off",
        "events, and perhaps the password, go over the network to Postgres unencrypted";
    TLS_UNVERIFIED = Warning, "tls-unverified",
        "the connection to Postgres is encrypted, but somebody in between could pose as the server";
    UNIX_SOCKET = Note, "unix-socket",
        "a relay that is frozen while the server sends it a large result keeps its lanes until it resumes or is killed: over a Unix socket the server has no timeout for that";
    CLOCK_SKEW = Warning, "clock-skew",
        "the clocks of this machine and of Postgres differ: times in logs, rows and records cannot be compared";
    KAFKA_TLS_OFF = Warning, "kafka-tls-off",
        "events go over the network to Kafka unencrypted";

    KAFKA_UNREACHABLE = Error, "kafka-unreachable",
        "no event can be published from here now; topics are looked at only if the brokers answer";
    TOPIC_MISSING = Error, "topic-missing",
        "events of this topic wait, or would, until it exists";
    TOPIC_UNUSABLE = Error, "topic-unusable",
        "events of this topic wait, or would, until what the brokers say of it has changed";
    TOPIC_HIDDEN = Note, "topic-settings-hidden",
        "the relay's user may not see the topic's settings, so they were not looked at; the relay takes Kafka's default for the largest record";
    PARTITION_UNAVAILABLE = Error, "partition-unavailable",
        "a partition takes no events now: it has no leader, or fewer replicas in sync than it asks for";
    REPLICATION_FACTOR = Warning, "replication-factor",
        "there is one copy of each record: if its broker loses its disk, events that count as sent are gone";
    MIN_INSYNC_TOO_HIGH = Error, "min-insync-too-high",
        "a record needs every replica, so the topic takes nothing as soon as one broker is down, be it for a restart";
    MIN_INSYNC_TOO_LOW = Warning, "min-insync-too-low",
        "a record counts as stored when one broker alone has it: if that one is lost before the others have copied it, the event is gone";
    PAYLOAD_ABOVE_TOPIC = Warning, "payload-above-topic-limit",
        "the topic takes no records as large as an event that waits; unless compression makes it smaller, Kafka refuses it";

    EVENT_TOPIC_NAME = Error, "event-topic-name",
        "Kafka allows no topic of that name, so the event can never be sent; a relay moves it to the dead letters, or blocks its key";
    EVENT_TOO_LARGE = Error, "event-too-large",
        "the event is larger than the producer's largest record, so it can never be sent; a relay moves it to the dead letters, or blocks its key";
    EVENT_HEADERS = Error, "event-headers",
        "headers have to be a flat JSON object of strings, without the relay's own names, so the event can never be sent; a relay moves it to the dead letters, or blocks its key";

    NOT_LOOKED_AT = Note, "not-looked-at",
        "this could not be asked, so nothing is known of it";
}

/// The code of this word.
pub fn code(word: &str) -> Option<&'static Code> {
    CODES.iter().copied().find(|code| code.word == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_a_word_of_its_own_and_a_meaning() {
        let mut words = HashSet::new();
        for code in CODES {
            assert!(words.insert(code.word), "{} twice", code.word);
            assert!(code.word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", code.word);
            assert!(!code.means.is_empty() && !code.means.ends_with('.'), "{}", code.word);
            assert_eq!(super::code(code.word), Some(*code));
        }
    }
}
