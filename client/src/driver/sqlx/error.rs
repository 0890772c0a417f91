use std::borrow::Cow;

use super::sqlx::Error;
use super::sqlx::error::DatabaseError;
use crate::error::{Details, DriverError, PostgresError, WithoutSqlstate};

impl From<Error> for PostgresError {
    fn from(error: Error) -> PostgresError {
        PostgresError::of_driver(error)
    }
}

impl DriverError for Error {
    fn details(&self) -> Details {
        let answer = self.as_database_error();
        Details {
            sqlstate: answer.and_then(DatabaseError::code).map(Cow::into_owned),
            message: answer.map_or_else(|| self.to_string(), |answer| answer.message().to_owned()),
            constraint: answer.and_then(|answer| answer.constraint()).map(str::to_owned),
            without_sqlstate: match self {
                // sqlx reports an incomplete answer as a protocol error.
                Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => WithoutSqlstate::ConnectionLost,
                Error::PoolTimedOut => WithoutSqlstate::NoConnection,
                _ => WithoutSqlstate::Rejected,
            },
        }
    }
}
