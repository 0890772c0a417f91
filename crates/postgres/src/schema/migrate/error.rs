//! Errors of migrations, with remedies.

use tokio_postgres::error::SqlState;

use crate::connection::server_error::ServerError;

/// Why migrations could not be read or applied. The failed migration was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// Another transaction holds a lock on a table.
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
        "{table}: another migration did not end within {seconds} s, so nothing was changed (see \
         pg_stat_activity and pg_blocking_pids()). Run the command again when the other migration has ended"
    )]
    Locked {
        /// The outbox table.
        table: String,
        /// How long the migration waited.
        seconds: u64,
    },
    /// The role lacks a privilege.
    #[error("{table}: {source}. As the owner or a superuser, run: {grant}")]
    Denied {
        /// The outbox table.
        table: String,
        /// The server's error.
        source: ServerError,
        /// The missing GRANT.
        grant: String,
    },
    /// A migration was applied with a different text.
    #[error(
        "{table}: migration {number} ({name}) was applied with different SQL (recorded sha256 {recorded}). Run the \
         outbox-relay version that applied it. Or, if the schema matches the output of `migrate --print`, correct \
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
    /// The database has a migration that this version does not have.
    #[error(
        "{table}: migration {number} ({name}) was applied by a newer outbox-relay. Migrations cannot be undone. \
         Upgrade this binary to {upgrade}"
    )]
    Newer {
        /// The outbox table.
        table: String,
        /// The migration's number.
        number: i32,
        /// The migration's name.
        name: String,
        /// The version to upgrade to.
        upgrade: String,
    },
    /// A table or function of that name exists, and no migration created it.
    #[error("{table}: {source}, but no migration is recorded for it. {remedy}, and run the command again")]
    Exists {
        /// The outbox table.
        table: String,
        /// The server's error.
        source: ServerError,
        /// How to resolve the conflict, without the full stop.
        remedy: &'static str,
    },
    /// The table that records migrations is not the outbox's own. It was not read.
    #[error("{table}: {problem}, so it was not read, and nothing was changed. Fix: {remedy}")]
    Foreign {
        /// The records table.
        table: String,
        /// What is wrong, with the name of the owner.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The columns are renamed, and the table is not adopted.
    #[error(
        "{table}: [outbox.columns] is set, so the table is an existing one, but it is not adopted yet. Run \
         `outbox-relay migrate --adopt {table}`. For a new table, remove [outbox.columns]"
    )]
    NotAdopted {
        /// The outbox table.
        table: String,
    },
    /// The server is a standby, or the session is read-only.
    #[error("{table}: {source}. Connect to the primary server")]
    ReadOnly {
        /// The outbox table.
        table: String,
        /// The server's error.
        source: ServerError,
    },
    /// The server is PostgreSQL 13 or older.
    #[error("{table}: the server is PostgreSQL {found}, which is not supported. Upgrade to 14 or later")]
    ServerTooOld {
        /// The outbox table.
        table: String,
        /// The server's version.
        found: String,
    },
    /// Any other error of the server or the connection.
    #[error("{table}: {source}. The failed step changed nothing. Fix the cause and run the command again")]
    Server {
        /// The outbox table.
        table: String,
        /// The error.
        source: ServerError,
    },
}

impl MigrateError {
    /// From an error of the server. `grant` is the statement for a missing privilege.
    pub(super) fn new(table: &str, source: ServerError, grant: impl FnOnce() -> String) -> Self {
        let table = table.to_owned();
        match source.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                Self::Locked { table, seconds: super::LOCK_TIMEOUT.as_secs() }
            }
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Self::Denied { table, source, grant: grant() },
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Self::ReadOnly { table, source },
            _ => Self::Server { table, source },
        }
    }
}
