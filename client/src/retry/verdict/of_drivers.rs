//! Verdicts for the errors of the drivers and of this crate.

use super::{Classify, Verdict};
use crate::error::{Details, DriverError, Error, PostgresError, WithoutSqlstate};

fn verdict(details: &Details) -> Verdict {
    match (&details.sqlstate, details.without_sqlstate) {
        (Some(sqlstate), _) => Verdict::of_sqlstate(sqlstate),
        (None, WithoutSqlstate::Rejected) => Verdict::Final,
        (None, WithoutSqlstate::NoConnection) => Verdict::Again,
        (None, WithoutSqlstate::ConnectionLost | WithoutSqlstate::NotExposed) => Verdict::Unknown,
    }
}

impl Classify for PostgresError {
    fn verdict(&self) -> Verdict {
        verdict(self.details())
    }
}

impl Classify for Error {
    fn verdict(&self) -> Verdict {
        match self {
            Error::Postgres { source, .. } => source.verdict(),
            _ => Verdict::Final,
        }
    }
}

#[cfg(feature = "tokio-postgres")]
impl Classify for tokio_postgres::Error {
    fn verdict(&self) -> Verdict {
        verdict(&self.details())
    }
}

#[cfg(feature = "sqlx")]
impl Classify for sqlx::Error {
    fn verdict(&self) -> Verdict {
        verdict(&self.details())
    }
}

#[cfg(feature = "sea-orm")]
impl Classify for sea_orm::DbErr {
    fn verdict(&self) -> Verdict {
        verdict(&self.details())
    }
}

#[cfg(feature = "sea-orm")]
impl<E: Classify + std::error::Error> Classify for sea_orm::TransactionError<E> {
    fn verdict(&self) -> Verdict {
        match self {
            sea_orm::TransactionError::Connection(error) => error.verdict(),
            sea_orm::TransactionError::Transaction(error) => error.verdict(),
        }
    }
}

/// diesel does not expose the SQLSTATE. The outcome of an error that is not recognized is unknown.
#[cfg(feature = "_diesel")]
impl Classify for diesel::result::Error {
    fn verdict(&self) -> Verdict {
        verdict(&self.details())
    }
}

#[cfg(all(test, any(feature = "sqlx", feature = "_diesel")))]
mod tests {
    use super::*;

    #[cfg(feature = "sqlx")]
    #[test]
    fn a_pool_without_a_free_connection_has_sent_nothing() {
        assert_eq!(sqlx::Error::PoolTimedOut.verdict(), Verdict::Again);
        assert_eq!(sqlx::Error::RowNotFound.verdict(), Verdict::Final);
        assert_eq!(PostgresError::from(sqlx::Error::WorkerCrashed).verdict(), Verdict::Unknown);
    }

    #[cfg(feature = "sea-orm")]
    #[test]
    fn errors_of_sea_orm_have_the_verdict_of_their_sqlx_error() {
        use sea_orm::{ConnAcquireErr, DbErr, RuntimeErr};
        let of = |error: sqlx::Error| DbErr::Query(RuntimeErr::SqlxError(error.into())).verdict();
        assert_eq!(of(sqlx::Error::WorkerCrashed), Verdict::Unknown);
        assert_eq!(of(sqlx::Error::RowNotFound), Verdict::Final);
        assert_eq!(DbErr::ConnectionAcquire(ConnAcquireErr::Timeout).verdict(), Verdict::Again);
    }

    #[cfg(feature = "_diesel")]
    #[test]
    fn errors_of_diesel_that_are_not_recognized_are_unknown() {
        use diesel::result::{DatabaseErrorKind, Error};
        let of = |kind, message: &str| Error::DatabaseError(kind, Box::new(message.to_owned())).verdict();
        assert_eq!(of(DatabaseErrorKind::Unknown, "Verklemmung entdeckt"), Verdict::Unknown);
        assert_eq!(of(DatabaseErrorKind::Unknown, "deadlock detected"), Verdict::Again);
        assert_eq!(of(DatabaseErrorKind::SerializationFailure, ""), Verdict::Again);
        assert_eq!(of(DatabaseErrorKind::UniqueViolation, ""), Verdict::Final);
        assert_eq!(of(DatabaseErrorKind::UnableToSendCommand, "connection closed"), Verdict::Unknown);
        assert_eq!(Error::NotFound.verdict(), Verdict::Final);
    }
}
