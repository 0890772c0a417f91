use diesel::result::{DatabaseErrorKind, Error};

use super::postgres::{Details, DriverError, PostgresError, WithoutSqlstate};

mod sqlstate;

impl From<Error> for PostgresError {
    fn from(error: Error) -> PostgresError {
        PostgresError::of_driver(error)
    }
}

impl DriverError for Error {
    fn details(&self) -> Details {
        match self {
            Error::DatabaseError(kind, information) => Details {
                sqlstate: sqlstate::of(kind, information.message()).map(str::to_owned),
                message: information.message().to_owned(),
                constraint: information.constraint_name().map(str::to_owned),
                without_sqlstate: match kind {
                    // diesel-async uses these for every error that PostgreSQL did not report.
                    DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => {
                        WithoutSqlstate::ConnectionLost
                    }
                    _ => WithoutSqlstate::NotExposed,
                },
            },
            Error::RollbackErrorOnCommit { commit_error, .. } => commit_error.details(),
            other => Details {
                sqlstate: None,
                message: other.to_string(),
                constraint: None,
                without_sqlstate: WithoutSqlstate::Rejected,
            },
        }
    }
}
