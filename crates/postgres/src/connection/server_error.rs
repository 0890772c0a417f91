//! The part of a PostgreSQL error that may be printed.

use std::error::Error;
use std::fmt;
use std::io;

use tokio_postgres::error::SqlState;

use crate::connection::dial::Refused;

/// An error of the server or the connection, without DETAIL, HINT and CONTEXT, which can contain a row.
///
/// It has no source, so that printing the chain of causes cannot show them either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    code: Option<SqlState>,
    message: String,
}

impl ServerError {
    /// The SQLSTATE; `None` if the server did not answer.
    pub fn code(&self) -> Option<&SqlState> {
        self.code.as_ref()
    }
}

impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(answer) = error.as_db_error() {
            return Self { code: Some(answer.code().clone()), message: answer.message().to_owned() };
        }
        let message = match error.source() {
            // The client library would say that TLS or the communication has failed.
            Some(cause) if is_ours(cause) => cause.to_string(),
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        Self { code: None, message }
    }
}

/// Whether the relay itself refused the connection.
fn is_ours(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<Refused>()
        || matches!(cause.downcast_ref().and_then(io::Error::get_ref), Some(within) if within.is::<Refused>())
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{} (SQLSTATE {})", self.message, code.code()),
            None => f.write_str(&self.message),
        }
    }
}

impl Error for ServerError {}
