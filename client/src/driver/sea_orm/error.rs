#[cfg(feature = "retry")]
use super::sea_orm::TransactionError;
use super::sea_orm::{ConnAcquireErr, DbErr, RuntimeErr};
use crate::error::{Details, DriverError, PostgresError, WithoutSqlstate};
#[cfg(feature = "retry")]
use crate::retry::{Classify, Verdict};

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

#[cfg(feature = "retry")]
impl Classify for DbErr {
    fn verdict(&self) -> Verdict {
        Verdict::of_driver(self)
    }
}

#[cfg(feature = "retry")]
impl<E: Classify + std::error::Error> Classify for TransactionError<E> {
    fn verdict(&self) -> Verdict {
        match self {
            TransactionError::Connection(error) => error.verdict(),
            TransactionError::Transaction(error) => error.verdict(),
        }
    }
}

#[cfg(all(test, feature = "retry"))]
mod tests {
    use super::super::sea_orm::sqlx;
    use super::*;

    #[test]
    #[allow(clippy::useless_conversion)] // sea-orm 2 has the error in an Arc
    fn errors_have_the_verdict_of_their_sqlx_error() {
        let of = |error: sqlx::Error| DbErr::Query(RuntimeErr::SqlxError(error.into())).verdict();
        assert_eq!(of(sqlx::Error::WorkerCrashed), Verdict::Unknown);
        assert_eq!(of(sqlx::Error::RowNotFound), Verdict::Final);
        assert_eq!(DbErr::ConnectionAcquire(ConnAcquireErr::Timeout).verdict(), Verdict::Again);
    }
}
