use super::sea_orm::{ConnAcquireErr, DbErr, RuntimeErr};
use crate::error::{Details, DriverError, PostgresError, WithoutSqlstate};

impl From<DbErr> for PostgresError {
    fn from(error: DbErr) -> PostgresError {
        PostgresError::of_driver(error)
    }
}

impl DriverError for DbErr {
    fn details(&self) -> Details {
        let without_sqlstate = match self {
            DbErr::Conn(RuntimeErr::SqlxError(inner))
            | DbErr::Exec(RuntimeErr::SqlxError(inner))
            | DbErr::Query(RuntimeErr::SqlxError(inner)) => return inner.details(),
            DbErr::ConnectionAcquire(ConnAcquireErr::Timeout) => WithoutSqlstate::NoConnection,
            _ => WithoutSqlstate::Rejected,
        };
        Details { sqlstate: None, message: self.to_string(), constraint: None, without_sqlstate }
    }
}
