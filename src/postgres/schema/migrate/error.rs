//! Why migrations were not applied, each with the way out.

use tokio_postgres::error::SqlState;

use crate::postgres::connection::server_error::ServerError;

/// Why the migrations could not be read or applied. Nothing is half done: the open migration was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// A transaction holds a lock on a table.
    #[error(
        "{table}: could not lock a table in {attempts} attempts, so nothing was changed. Another transaction holds \
         a lock on it (see pg_stat_activity and pg_blocking_pids()). A relay holds its lock while it waits for \
         Kafka: run `outbox-relay pause`, then this command again, then `outbox-relay resume`",
        attempts = super::DDL_ATTEMPTS
    )]
    InUse {
        /// The outbox table.
        table: String,
    },
    /// Another migration is in progress.
    #[error(
        "{table}: waited {seconds} s for another migration, so nothing was changed (see pg_stat_activity and \
         pg_blocking_pids()). Run the command again when the other migration has ended"
    )]
    Locked {
        /// The outbox table.
        table: String,
        /// How long it waited.
        seconds: u64,
    },
    /// The role may not do it.
    #[error("{table}: {source}. As the owner or a superuser, run: {grant}")]
    Denied {
        /// The outbox table.
        table: String,
        /// What the server said.
        source: ServerError,
        /// The missing GRANT.
        grant: String,
    },
    /// A migration was applied from another text.
    #[error(
        "{table}: migration {number} ({name}) was applied with a different text (recorded sha256 {recorded}). Run \
         the outbox-relay version that applied it. If the schema matches the output of `migrate --print`, correct \
         the checksum in the migration table"
    )]
    ChecksumDiffers {
        /// The outbox table.
        table: String,
        /// The migration's number.
        number: i32,
        /// The migration's name.
        name: String,
        /// The checksum in the database.
        recorded: String,
    },
    /// The database knows a migration that this binary does not.
    #[error(
        "{table}: migration {number} ({name}) was applied by a newer outbox-relay. Migrations cannot be undone. \
         Upgrade this binary"
    )]
    Newer {
        /// The outbox table.
        table: String,
        /// The migration's number.
        number: i32,
        /// The migration's name.
        name: String,
    },
    /// A table of that name exists already, and no migration made it.
    #[error(
        "{table}: {source}, but no migration is recorded for it. Choose another name in [outbox] table or rename \
         the existing table, and run the command again"
    )]
    Exists {
        /// The outbox table.
        table: String,
        /// What the server said.
        source: ServerError,
    },
    /// A standby, or a session that cannot write.
    #[error("{table}: {source}. Connect to the primary server")]
    ReadOnly {
        /// The outbox table.
        table: String,
        /// What the server said.
        source: ServerError,
    },
    /// Postgres 13 or older.
    #[error("{table}: the server is PostgreSQL {found}, which is not supported. Upgrade to 14 or newer")]
    ServerTooOld {
        /// The outbox table.
        table: String,
        /// Its version.
        found: String,
    },
    /// Anything else that the server or the connection reported.
    #[error("{table}: {source}. The failed step changed nothing. Fix the cause and run the command again")]
    Server {
        /// The outbox table.
        table: String,
        /// What it said.
        source: ServerError,
    },
}

impl MigrateError {
    /// The error for `source`, where `grant` is what a refused role would need.
    pub(super) fn new(table: &str, source: ServerError, grant: impl FnOnce() -> String) -> Self {
        let table = table.to_owned();
        match source.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                Self::Locked { table, seconds: super::LOCK_TIMEOUT.as_secs() }
            }
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Self::Denied { table, source, grant: grant() },
            Some(&SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_FUNCTION) => {
                Self::Exists { table, source }
            }
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Self::ReadOnly { table, source },
            _ => Self::Server { table, source },
        }
    }
}
