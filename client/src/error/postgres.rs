use std::error::Error as StdError;
use std::fmt;

/// An error of PostgreSQL or of the connection, for any driver.
///
/// It prints the message and the SQLSTATE, but not DETAIL and CONTEXT, which can quote the row and the payload. They are in
/// [`PostgresError::driver_error`].
///
/// ```
/// use pg_outbox::{Error, PostgresError};
///
/// fn describe(error: &PostgresError) -> &'static str {
///     match error.sqlstate() {
///         Some("40001" | "40P01") => "retry the transaction",
///         Some("23505") if error.constraint() == Some("one_event_per_order") => "the event exists",
///         _ if error.is_connection_lost() => "the outcome may be unknown",
///         _ => "roll back",
///     }
/// }
///
/// /// The driver's error, to look at what this type does not show.
/// fn is_of_the_driver<E: std::error::Error + 'static>(error: Error) -> bool {
///     match error {
///         Error::Postgres { source, .. } => {
///             source.driver_error().is::<E>() && source.into_driver_error().downcast::<E>().is_ok()
///         }
///         _ => false,
///     }
/// }
/// ```
// Boxed, because every result of this crate is as large as its error.
pub struct PostgresError(Box<(Details, Box<dyn StdError + Send + Sync>)>);

/// What a driver's error reports.
#[allow(missing_docs)] // hidden
pub struct Details {
    pub sqlstate: Option<String>,
    pub message: String,
    pub constraint: Option<String>,
    pub without_sqlstate: WithoutSqlstate,
}

/// What an error without a SQLSTATE means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutSqlstate {
    /// The driver rejected a value or could not read an answer.
    Rejected,
    /// The pool had no connection, so nothing was sent.
    NoConnection,
    /// The connection was lost without an answer.
    ConnectionLost,
    /// PostgreSQL reported an error, but the driver does not expose the SQLSTATE.
    NotExposed,
}

/// An error of a driver.
#[allow(missing_docs)] // hidden
pub trait DriverError {
    fn details(&self) -> Details;
}

impl PostgresError {
    /// The SQLSTATE, if PostgreSQL reported the error: `40001` for a serialization failure, `40P01` for a deadlock. This crate
    /// also uses `25P01` if a call needs an open transaction, and `25001` if a call must not be in one.
    ///
    /// diesel does not expose it. This crate derives it for violated constraints, serialization failures and read-only
    /// transactions. It recognizes other errors by their message, if the server's `lc_messages` is English.
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.0.sqlstate.as_deref()
    }

    /// The violated constraint.
    pub fn constraint(&self) -> Option<&str> {
        self.0.0.constraint.as_deref()
    }

    /// Whether the connection is lost. If this happened during a COMMIT, its outcome is unknown.
    pub fn is_connection_lost(&self) -> bool {
        self.0.0.without_sqlstate == WithoutSqlstate::ConnectionLost
            || self.sqlstate().is_some_and(ends_the_connection)
    }

    /// The driver's error. Downcast it to `tokio_postgres::Error`, `sqlx::Error`, `sea_orm::DbErr` or `diesel::result::Error`, of
    /// the version whose transaction or client the call used. Do not log it, because its text can quote the payload.
    pub fn driver_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0.1
    }

    /// See [`PostgresError::driver_error`].
    pub fn into_driver_error(self) -> Box<dyn StdError + Send + Sync> {
        self.0.1
    }

    pub(crate) fn of_driver(error: impl DriverError + StdError + Send + Sync + 'static) -> PostgresError {
        PostgresError(Box::new((error.details(), Box::new(error))))
    }

    #[doc(hidden)]
    pub fn details(&self) -> &Details {
        &self.0.0
    }

    /// An error that this crate detects.
    pub(crate) fn detected(sqlstate: &str, message: &str) -> PostgresError {
        let details = Details {
            sqlstate: Some(sqlstate.to_owned()),
            message: message.to_owned(),
            constraint: None,
            without_sqlstate: WithoutSqlstate::Rejected,
        };
        PostgresError(Box::new((details, message.into())))
    }

    /// A call that needs an open transaction was made outside of one.
    #[cfg(any(feature = "_sqlx", feature = "_diesel"))]
    pub(crate) fn no_transaction() -> PostgresError {
        PostgresError::detected("25P01", "no transaction is open on this connection")
    }

    /// A call that commits by itself was made in an open transaction.
    #[doc(hidden)]
    pub fn in_transaction() -> PostgresError {
        PostgresError::detected("25001", "a transaction is open on this connection")
    }
}

/// Class 08, and the codes of a shutdown, a crash and idle timeouts.
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

// No source(), so that printing the chain of causes does not show the driver's DETAIL.
impl StdError for PostgresError {}
