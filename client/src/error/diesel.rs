use diesel::result::{DatabaseErrorKind, Error};

use super::postgres::{PostgresError, Said, Says, Unsaid};

mod sqlstate;

impl From<Error> for PostgresError {
    fn from(error: Error) -> PostgresError {
        PostgresError::of(error)
    }
}

impl Says for Error {
    fn said(&self) -> Said {
        match self {
            Error::DatabaseError(kind, information) => Said {
                sqlstate: sqlstate::of(kind, information.message()).map(str::to_owned),
                message: information.message().to_owned(),
                constraint: information.constraint_name().map(str::to_owned),
                unsaid: match kind {
                    // What diesel-async calls everything that did not come from Postgres.
                    DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => {
                        Unsaid::CutOff
                    }
                    _ => Unsaid::Untold,
                },
            },
            Error::RollbackErrorOnCommit { commit_error, .. } => commit_error.said(),
            other => {
                let message = other.to_string();
                Said { sqlstate: None, message, constraint: None, unsaid: Unsaid::Refused }
            }
        }
    }
}
