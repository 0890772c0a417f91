use std::error::Error as StdError;
use std::io;

use tokio_postgres::error::SqlState;

use super::postgres::{Details, DriverError, PostgresError, WithoutSqlstate};

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> PostgresError {
        PostgresError::of_driver(error)
    }
}

impl DriverError for tokio_postgres::Error {
    fn details(&self) -> Details {
        let message = match (self.as_db_error(), self.source()) {
            (Some(answer), _) => answer.message().to_owned(),
            (None, Some(source)) => format!("{self}: {source}"),
            (None, None) => self.to_string(),
        };
        let is_io = <dyn StdError>::is::<io::Error>;
        let is_lost = self.is_closed() || self.source().is_some_and(is_io);
        Details {
            sqlstate: self.code().map(SqlState::code).map(str::to_owned),
            message,
            constraint: self.as_db_error().and_then(|answer| answer.constraint()).map(str::to_owned),
            without_sqlstate: if is_lost {
                WithoutSqlstate::ConnectionLost
            } else {
                WithoutSqlstate::Rejected
            },
        }
    }
}
