use std::borrow::Cow;

use sqlx::Error;
use sqlx::error::DatabaseError;

use super::postgres::{PostgresError, Said, Says, Unsaid};

impl From<Error> for PostgresError {
    fn from(error: Error) -> PostgresError {
        PostgresError::of(error)
    }
}

impl Says for Error {
    fn said(&self) -> Said {
        let answer = self.as_database_error();
        Said {
            sqlstate: answer.and_then(DatabaseError::code).map(Cow::into_owned),
            message: answer.map_or_else(|| self.to_string(), |answer| answer.message().to_owned()),
            constraint: answer.and_then(|answer| answer.constraint()).map(str::to_owned),
            unsaid: match self {
                // A protocol error is what sqlx makes of an answer that breaks off in its middle.
                Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => Unsaid::CutOff,
                Error::PoolTimedOut => Unsaid::NoConnection,
                _ => Unsaid::Refused,
            },
        }
    }
}
