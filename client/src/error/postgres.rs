use std::error::Error as StdError;
use std::fmt;

/// An error of Postgres or of the connection to it, whichever driver it came through.
///
/// What it prints has the message and the SQLSTATE, and leaves out DETAIL and CONTEXT, which quote the row
/// and the payload. All of it is in [`PostgresError::driver_error`].
// In a box, since every result of this crate is as large as its error.
pub struct PostgresError(Box<(Said, Box<dyn StdError + Send + Sync>)>);

/// What a driver's error says.
pub(crate) struct Said {
    pub(crate) sqlstate: Option<String>,
    pub(crate) message: String,
    pub(crate) constraint: Option<String>,
    pub(crate) unsaid: Unsaid,
}

/// What is known of an error without a SQLSTATE.
#[allow(dead_code)] // no driver alone makes all of them
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsaid {
    /// The driver refused a value or could not read an answer.
    Refused,
    /// A pool had no connection, so nothing was sent.
    NoConnection,
    /// The connection ended without a word of Postgres.
    CutOff,
    /// Postgres has answered, and the driver does not hand on the SQLSTATE.
    Untold,
}

/// An error of a driver.
pub(crate) trait Says {
    fn said(&self) -> Said;
}

impl PostgresError {
    /// The five characters of the SQLSTATE, if Postgres sent the error: `40001` for a serialization
    /// failure, `40P01` for a deadlock. `25P01` and `25001` also come from this crate, where a call needs
    /// an open transaction and finds none, or the other way round.
    ///
    /// diesel does not hand it on. There it is known for violated constraints, serialization failures and
    /// read-only transactions; other errors are recognised by their message, if the server's `lc_messages`
    /// is English.
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.0.sqlstate.as_deref()
    }

    /// The constraint that was violated.
    pub fn constraint(&self) -> Option<&str> {
        self.0.0.constraint.as_deref()
    }

    /// Whether the connection is gone. If that was during a COMMIT nobody knows its outcome.
    pub fn is_connection_lost(&self) -> bool {
        self.0.0.unsaid == Unsaid::CutOff || self.sqlstate().is_some_and(ends_the_connection)
    }

    /// The driver's own error: downcast it to `tokio_postgres::Error`, `sqlx::Error`, `sea_orm::DbErr` or
    /// `diesel::result::Error`. Its text can quote the payload: keep it out of logs.
    pub fn driver_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0.1
    }

    /// See [`PostgresError::driver_error`].
    pub fn into_driver_error(self) -> Box<dyn StdError + Send + Sync> {
        self.0.1
    }

    pub(super) fn of(error: impl Says + StdError + Send + Sync + 'static) -> PostgresError {
        PostgresError(Box::new((error.said(), Box::new(error))))
    }

    #[cfg(feature = "retry")]
    pub(crate) fn said(&self) -> &Said {
        &self.0.0
    }

    /// An error that this crate finds by itself.
    #[cfg(any(feature = "sqlx", feature = "diesel-async"))]
    pub(crate) fn found(sqlstate: &str, message: &str) -> PostgresError {
        let said = Said {
            sqlstate: Some(sqlstate.to_owned()),
            message: message.to_owned(),
            constraint: None,
            unsaid: Unsaid::Refused,
        };
        PostgresError(Box::new((said, message.into())))
    }

    /// A call that is committed by itself met an open transaction.
    #[cfg(all(feature = "_modules", any(feature = "sqlx", feature = "diesel-async")))]
    pub(crate) fn in_transaction() -> PostgresError {
        PostgresError::found("25001", "a transaction is open on this connection")
    }
}

/// Class 08, and what a server says last: a shutdown, a crash, a timeout of an idle session.
fn ends_the_connection(sqlstate: &str) -> bool {
    sqlstate.starts_with("08") || matches!(sqlstate, "57P01" | "57P02" | "57P05" | "25P03")
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.0.message)?;
        match &self.0.0.sqlstate {
            Some(sqlstate) => write!(f, " (SQLSTATE {sqlstate})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresError({self})")
    }
}

// No source(): a chain printed to its end must not reach the driver's DETAIL.
impl StdError for PostgresError {}
