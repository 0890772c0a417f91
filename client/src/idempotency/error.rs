use thiserror::Error as ThisError;

use super::REQUEST_BYTES_MAX;
use super::fingerprint::DEPTH_MAX;
use super::response::InvalidResponse;
use crate::call::DatabaseError;
use crate::error::PostgresError;
use crate::invalid_text::InvalidText;

/// The SQLSTATE of the functions for a lock that is not held any more.
const LOCK_LOST: &str = "OB001";

/// Why something about an idempotency key failed. No message holds anything of a request or a response.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A scope, a key or the name of a phase that cannot be stored.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// The body is not JSON in UTF-8. A client's mistake: 400.
    #[error("the request's body is not JSON: line {line}, column {column}")]
    NotJson {
        /// The line of the first fault, from 1.
        line: usize,
        /// Its column, from 1; 0 if the body has ended.
        column: usize,
    },
    /// The body is JSON, but nested too deep. A client's mistake: 400.
    #[error("the request's body is nested deeper than {DEPTH_MAX}")]
    TooDeep,
    /// The body is too large to be kept.
    #[error("the request's body has {bytes} bytes; at most {REQUEST_BYTES_MAX} can be kept")]
    RequestTooLarge {
        /// How many it has.
        bytes: usize,
    },
    /// The time of a lock is nothing, or more than a day.
    #[error("a lock is held for more than 0 s and at most a day")]
    LockTime,
    /// The response is not one to be stored. The transaction is as it was.
    #[error(transparent)]
    Response(#[from] InvalidResponse),
    /// The lock is not held any more: it had expired and somebody else has taken the request over, or it is finished
    /// already. The transaction can only be rolled back, which keeps the effect from happening twice.
    #[error("the lock of this idempotency key is not held any more: the transaction has to be rolled back")]
    LockLost,
    /// What is stored cannot be read: another program has written it.
    #[error("what is stored for this idempotency key cannot be read")]
    Stored(#[source] serde_json::Error),
    /// Postgres refused, or is out of reach.
    #[error(transparent)]
    Database(DatabaseError),
}

impl Error {
    #[allow(clippy::needless_pass_by_value)] // map_err hands it over
    pub(super) fn not_json(error: serde_json::Error) -> Error {
        // Not the source: its text can quote the body.
        Error::NotJson { line: error.line(), column: error.column() }
    }
}

impl From<PostgresError> for Error {
    fn from(error: PostgresError) -> Error {
        match error.sqlstate() {
            Some(LOCK_LOST) => Error::LockLost,
            _ => Error::Database(DatabaseError::new("idempotency", error)),
        }
    }
}

/// Why a phase did not come to its end. Nothing of it is committed, but after [`PhaseError::Commit`] that is unknown.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum PhaseError<E> {
    /// The application's own work failed.
    #[error(transparent)]
    Work(E),
    /// What the phase keeps is no JSON, or not of this type any more.
    #[error("the data of the phase cannot be converted")]
    Data(#[source] serde_json::Error),
    /// The phase could not be recorded.
    #[error(transparent)]
    Idempotency(#[from] Error),
    /// The transaction could not be begun.
    #[error("the transaction of the phase could not be begun")]
    Begin(#[source] PostgresError),
    /// The transaction could not be committed, or its answer was lost. Begin the request again.
    #[error("the transaction of the phase could not be committed")]
    Commit(#[source] PostgresError),
}
