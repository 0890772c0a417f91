use std::fmt;

use tokio_postgres::error::SqlState;

/// An error of Postgres or of the connection to it.
///
/// What it prints has the message and the SQLSTATE, and leaves out DETAIL and CONTEXT, which quote the row
/// and the payload. All of it is in [`PostgresError::driver_error`].
pub struct PostgresError(tokio_postgres::Error);

impl PostgresError {
    /// The five characters of the SQLSTATE, if Postgres sent the error: `40001` for a serialization
    /// failure, `40P01` for a deadlock.
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.code().map(SqlState::code)
    }

    /// The driver's own error. Its text can quote the payload: keep it out of logs.
    pub fn driver_error(&self) -> &tokio_postgres::Error {
        &self.0
    }

    /// See [`PostgresError::driver_error`].
    pub fn into_driver_error(self) -> tokio_postgres::Error {
        self.0
    }
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> PostgresError {
        PostgresError(error)
    }
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = self.0.as_db_error() {
            return write!(f, "{} (SQLSTATE {})", error.message(), error.code().code());
        }
        write!(f, "{}", self.0)?;
        match std::error::Error::source(&self.0) {
            Some(source) => write!(f, ": {source}"),
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
impl std::error::Error for PostgresError {}
