use sea_orm::{ConnAcquireErr, DbErr, RuntimeErr};

use super::postgres::{PostgresError, Said, Says, Unsaid};

impl From<DbErr> for PostgresError {
    fn from(error: DbErr) -> PostgresError {
        PostgresError::of(error)
    }
}

impl Says for DbErr {
    fn said(&self) -> Said {
        let unsaid = match self {
            DbErr::Conn(RuntimeErr::SqlxError(inner))
            | DbErr::Exec(RuntimeErr::SqlxError(inner))
            | DbErr::Query(RuntimeErr::SqlxError(inner)) => return inner.said(),
            DbErr::ConnectionAcquire(ConnAcquireErr::Timeout) => Unsaid::NoConnection,
            _ => Unsaid::Refused,
        };
        Said { sqlstate: None, message: self.to_string(), constraint: None, unsaid }
    }
}
