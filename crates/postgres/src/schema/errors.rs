//! What is wrong with a schema, and why it could not be checked, migrated or adopted. Each error has a remedy.

use crate::connection::errors::ServerError;
use crate::table::TableName;
use settings::codes;
use settings::doctor::Finding;
use settings::text::in_line;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// How long a migration waits for another migration.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a statement that could not get its lock is run.
pub(crate) const DDL_ATTEMPTS: u32 = 10;

// What the checks at start find, and what only `doctor` finds, in the order of `docs/doctor.md`.
codes! {
    SERVER_TOO_OLD = Error, "server-too-old",
        "this version of PostgreSQL is not supported";
    STANDBY = Error, "standby",
        "the server is a standby, so the relay cannot claim or mark rows";
    ENCODING = Error, "encoding",
        "the encoding of the database is not UTF8: a single event whose text is not valid UTF-8 would make reads of other \
         events fail; the relay does not start";
    MIGRATION = Error, "migration",
        "the schema is missing or has a different version; the relay does not start, or waits for a pending migration";
    SCHEMA_NEWER = Warning, "schema-newer",
        "a newer version migrated the schema; this version can run on it";
    RELATION = Error, "relation",
        "a table is missing or not durable; the relay does not start";
    COLUMN = Error, "column",
        "a column of the outbox is missing or has the wrong type; the relay does not start";
    PENDING_INDEX = Error, "pending-index",
        "without this index, each claim would sort the whole table; the relay does not start";
    CLAIM_PLAN = Error, "claim-plan",
        "with the current statistics, the claim does not use the pending index, so it becomes slower as the table grows";
    INDEX_INVALID = Warning, "index-invalid",
        "the build of the index was interrupted; it serves no query and slows down every insert";
    INDEX_UNUSED = Note, "index-unused",
        "no query has used this index since the statistics were reset, and it slows down every insert and update";
    SEQUENCE = Error, "sequence",
        "IDs are not assigned in the order in which rows are inserted, so events of one key can be published out of order; the \
         relay does not start";
    SEQUENCE_LIMIT = Warning, "sequence-limit",
        "the sequence ends where an integer ends, as that of a serial column whose type became bigint; after that, applications can \
         insert no events";
    OUTBOX_TRIGGER = Warning, "outbox-trigger",
        "if the trigger suppresses the update, the relay publishes events that it cannot record as sent, and publishes them \
         again after each restart";
    OUTBOX_CONSTRAINT = Warning, "outbox-constraint",
        "if the constraint prevents the relay from setting sent_at or from deleting a row, the relay publishes events that it \
         cannot record as sent, and publishes them again after each restart, or sent events are never deleted";
    LANES = Error, "lanes",
        "events of a missing lane would never be sent; the relay does not start";
    HOLD_COUNT = Error, "hold-count",
        "changes to holds and blocked keys are not counted, so releasing them could reorder events; the relay does not start";
    ROW_SECURITY = Error, "row-security",
        "rows may be hidden from the relay, and hidden events are never sent; the relay does not start";
    AUTOVACUUM_OFF = Warning, "autovacuum-off",
        "dead rows are never removed, so the table and its indexes grow without limit";
    WRAPAROUND = Warning, "wraparound",
        "more than a billion transactions have begun since the oldest one that vacuum has not frozen; PostgreSQL accepts no \
         writes at two billion, so applications could insert no events";
    AUTOVACUUM_LATE = Warning, "autovacuum-late",
        "vacuum starts so late that the table grows much larger than its live rows require";
    LONG_TRANSACTION = Warning, "long-transaction",
        "while this transaction, or this query of a standby, is open, vacuum cannot remove rows that were sent after it began, so the table grows";
    PREPARED_TRANSACTION = Warning, "prepared-transaction",
        "a prepared transaction is still open: vacuum cannot remove rows that were sent after it began, so the table grows";
    REPLICATION_SLOT = Warning, "replication-slot",
        "the slot of a standby prevents vacuum from removing sent rows, permanently if the standby no longer exists";
    GRANT_MISSING = Error, "grant-missing",
        "the role lacks a required privilege; the relay does not start";
}

pub(super) const MIGRATE: &str = "run `outbox-relay migrate --config FILE`";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("the database cannot be used:{}", list(.0))]
    Faults(Vec<Finding>),
    /// A migration is pending, so the schema is older than this version, which may also be the cause of the other faults.
    #[error("the database cannot be used:{}", list(.0))]
    Older(Vec<Finding>),
    #[error("the schema could not be checked: {0}")]
    Server(#[from] ServerError),
}

impl From<tokio_postgres::Error> for CheckError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error.into())
    }
}

pub(super) fn list(faults: &[Finding]) -> String {
    faults.iter().map(|fault| format!("\n  {}", in_line(&fault.to_string(), usize::MAX))).collect()
}

/// Why migrations could not be read or applied. The failed migration was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    #[error(
        "{table}: could not lock a table in {attempts} attempts. The failed step changed nothing; earlier steps that were \
         applied stay applied. Another transaction holds a lock on it (see pg_stat_activity and pg_blocking_pids()), or \
         an autovacuum that prevents wraparound, which you can cancel with pg_cancel_backend(). A relay holds its lock \
         while it waits for Kafka: run `outbox-relay pause`, then this command again, then `outbox-relay resume`",
        attempts = DDL_ATTEMPTS
    )]
    InUse { table: String },
    #[error(
        "{table}: another migration did not end within {seconds} s (see pg_stat_activity and pg_blocking_pids()). The \
         failed step changed nothing; earlier steps that were applied stay applied. Run the command again when the other \
         migration has ended"
    )]
    Locked { table: String, seconds: u64 },
    #[error("{table}: {source}. As the owner or a superuser, run: {grant}")]
    Denied { table: String, source: ServerError, grant: String },
    #[error(
        "{table}: migration {number} ({name}) was applied with different SQL (recorded sha256 {recorded}). Run the \
         outbox-relay version that applied it. Or, if the schema matches the output of `migrate --print`, correct \
         the checksum in the migration table"
    )]
    ChecksumDiffers { table: String, number: i32, name: String, recorded: String },
    #[error(
        "{table}: migration {number} ({name}) was applied by a newer outbox-relay. Migrations cannot be undone. \
         Upgrade this binary to {upgrade}"
    )]
    Newer { table: String, number: i32, name: String, upgrade: String },
    #[error("{table}: {source}, but no migration is recorded for it. {remedy}, and run the command again")]
    Exists { table: String, source: ServerError, remedy: &'static str },
    #[error("{table}: {problem}, so it was not read, and nothing was changed. Fix: {remedy}")]
    Foreign { table: String, problem: String, remedy: String },
    #[error(
        "{table}: [outbox.columns] is set, so the table is an existing one, but it is not adopted yet. Run \
         `outbox-relay migrate --adopt {table}`. For a new table, remove [outbox.columns]"
    )]
    NotAdopted { table: String },
    #[error("{table}: {source}. Connect to the primary server")]
    ReadOnly { table: String, source: ServerError },
    #[error("{table}: the server is PostgreSQL {found}, which is not supported. Upgrade to 14 or later")]
    ServerTooOld { table: String, found: String },
    #[error("{table}: {source}. The failed step changed nothing. Fix the cause and run the command again")]
    Server { table: String, source: ServerError },
}

impl MigrateError {
    /// From an error of the server. `grant` is the statement for a missing privilege.
    pub(super) fn new(table: &TableName, source: tokio_postgres::Error, grant: &str) -> Self {
        let (table, source) = (table.to_string(), ServerError::from(source));
        match source.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => Self::Locked { table, seconds: LOCK_TIMEOUT.as_secs() },
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                Self::Denied { table, source, grant: grant.to_owned() }
            }
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Self::ReadOnly { table, source },
            _ => Self::Server { table, source },
        }
    }
}

/// An error of the server without a remedy of its own.
pub(super) fn failed(table: &TableName) -> impl Fn(tokio_postgres::Error) -> MigrateError + Copy + '_ {
    |error| MigrateError::new(table, error, "")
}

/// Why a table was not adopted, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    #[error("{table} cannot be adopted, and nothing was changed:{}", list(faults))]
    Refused { table: String, faults: Vec<Finding> },
    #[error(
        "{table} has rows, and nothing shows that one of them was sent, so nothing was changed. To publish them, add \
         --existing-rows publish. To treat them as sent, add --existing-rows sent"
    )]
    ExistingRows { table: String },
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    #[error("{table}: cannot {step}: {source}. {remedy}")]
    Step { table: String, step: String, source: ServerError, remedy: &'static str },
    #[error("{0}")]
    Check(#[from] CheckError),
    #[error(
        "{table} could not be read within 5 s, because another transaction has locked it, so nothing was changed. Run the \
         command again when the transaction has ended (see pg_stat_activity and pg_blocking_pids())"
    )]
    Locked { table: String },
    #[error("{0}")]
    Server(ServerError),
}

impl From<tokio_postgres::Error> for AdoptError {
    fn from(error: tokio_postgres::Error) -> AdoptError {
        AdoptError::Server(error.into())
    }
}
