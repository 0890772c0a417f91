use std::error::Error as StdError;
use std::io;

use tokio_postgres::error::SqlState;

use super::postgres::{PostgresError, Said, Says, Unsaid};

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> PostgresError {
        PostgresError::of(error)
    }
}

impl Says for tokio_postgres::Error {
    fn said(&self) -> Said {
        let message = match (self.as_db_error(), self.source()) {
            (Some(answer), _) => answer.message().to_owned(),
            (None, Some(source)) => format!("{self}: {source}"),
            (None, None) => self.to_string(),
        };
        let is_io = <dyn StdError>::is::<io::Error>;
        let is_cut_off = self.is_closed() || self.source().is_some_and(is_io);
        Said {
            sqlstate: self.code().map(SqlState::code).map(str::to_owned),
            message,
            constraint: self.as_db_error().and_then(|answer| answer.constraint()).map(str::to_owned),
            unsaid: if is_cut_off { Unsaid::CutOff } else { Unsaid::Refused },
        }
    }
}
