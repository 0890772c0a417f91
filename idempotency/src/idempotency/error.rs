use pg_outbox::PostgresError;
use thiserror::Error as ThisError;

use super::REQUEST_BYTES_MAX;
use super::fingerprint::DEPTH_MAX;
use super::response::InvalidResponse;
use crate::database::DatabaseError;
use crate::invalid_text::InvalidText;

/// The SQLSTATE that the SQL functions use for a lost lock.
const LOCK_LOST: &str = "OB001";
const TOO_MANY_KEYS: &str = "OB002";

/// Errors of idempotency keys. Messages never contain parts of a request or a response.
///
/// ```
/// use pg_idempotency::idempotency::Error;
///
/// /// What an API answers.
/// fn status(error: &Error) -> u16 {
///     match error {
///         Error::Invalid(_) | Error::NotJson { .. } | Error::TooDeep => 400,
///         Error::RequestTooLarge { .. } => 413,
///         Error::TooManyKeys => 429,
///         Error::LockLost | Error::Database(_) => 503, // the client repeats the request
///         _ => 500,
///     }
/// }
/// ```
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A scope, a key or the name of a phase is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// The body is not JSON in UTF-8. Return 400.
    #[error("the body of the request is not valid JSON at line {line}, column {column}")]
    NotJson {
        /// The line of the first error, from 1.
        line: usize,
        /// Its column, from 1; 0 at the end of the body.
        column: usize,
    },
    /// The body is JSON, but nested too deeply. Return 400.
    #[error("the JSON body of the request has more than {DEPTH_MAX} levels")]
    TooDeep,
    /// The body is too large to be kept.
    #[error("the body of the request has {bytes} bytes, but the maximum is {REQUEST_BYTES_MAX}")]
    RequestTooLarge {
        /// The size of the body.
        bytes: usize,
    },
    /// The lock time is less than 1 ms or more than a day.
    #[error("the lock time is invalid. Set it to a value between 1 ms and 1 day")]
    LockTime,
    /// The response cannot be stored. The transaction is unchanged.
    #[error(transparent)]
    Response(#[from] InvalidResponse),
    /// The lock has expired and another attempt has taken over the request, or the request is finished. The transaction can
    /// only be rolled back, so the effect does not happen twice.
    #[error("the lock on this idempotency key was lost. Roll back the transaction")]
    LockLost,
    /// The scope has as many keys as the table `idempotency_service` allows. Return 429.
    #[error("this scope has the maximum number of idempotency keys")]
    TooManyKeys,
    /// The stored data has an unexpected format. The source can quote the result of a phase.
    #[error("cannot read the data stored for this idempotency key")]
    Stored(#[source] serde_json::Error),
    /// PostgreSQL rejected the call or is unavailable.
    #[error(transparent)]
    Database(DatabaseError),
}

impl Error {
    #[allow(clippy::needless_pass_by_value)] // for map_err
    pub(super) fn not_json(error: serde_json::Error) -> Error {
        // Without the source, because its text can quote the body.
        Error::NotJson { line: error.line(), column: error.column() }
    }
}

impl From<PostgresError> for Error {
    fn from(error: PostgresError) -> Error {
        match error.sqlstate() {
            Some(LOCK_LOST) => Error::LockLost,
            Some(TOO_MANY_KEYS) => Error::TooManyKeys,
            _ => Error::Database(DatabaseError::new("idempotency", error)),
        }
    }
}

/// Why a phase failed. Nothing was committed, except that the outcome of [`PhaseError::Commit`] is unknown.
///
/// ```
/// use pg_idempotency::idempotency::{Error, PhaseError};
///
/// /// Whether another attempt has taken over the request.
/// fn is_taken_over<E>(error: &PhaseError<E>) -> bool {
///     matches!(error, PhaseError::Idempotency(Error::LockLost))
/// }
/// ```
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum PhaseError<E> {
    /// The application's work failed.
    #[error(transparent)]
    Work(E),
    /// The result of the phase cannot be converted to JSON and back, or the stored result to this type. The source can quote it.
    #[error("cannot convert the result of the phase")]
    Data(#[source] serde_json::Error),
    /// The phase could not be recorded.
    #[error(transparent)]
    Idempotency(#[from] Error),
    /// The transaction could not be begun.
    #[error("cannot begin the transaction of the phase")]
    Begin(#[source] PostgresError),
    /// The transaction could not be committed, or the answer was lost. Begin the request again.
    #[error(
        "committing the transaction of the phase failed, and its outcome is unknown (begin the request again)"
    )]
    Commit(#[source] PostgresError),
    /// The outcome of an earlier phase of this guard is unknown, so the guard runs no further phase. Release the guard, and
    /// begin the request again: its next guard knows the outcome.
    #[error("the outcome of an earlier phase is unknown, so no further phase runs. Begin the request again")]
    Uncertain,
}
