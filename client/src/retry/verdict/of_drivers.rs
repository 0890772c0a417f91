//! The errors of the drivers, and what this crate makes of them.

use super::{Classify, Verdict};
use crate::error::{Error, PostgresError, Said, Says, Unsaid};

fn verdict(said: &Said) -> Verdict {
    match (&said.sqlstate, said.unsaid) {
        (Some(sqlstate), _) => Verdict::of_sqlstate(sqlstate),
        (None, Unsaid::Refused) => Verdict::Final,
        (None, Unsaid::NoConnection) => Verdict::Again,
        (None, Unsaid::CutOff | Unsaid::Untold) => Verdict::Unknown,
    }
}

impl Classify for PostgresError {
    fn verdict(&self) -> Verdict {
        verdict(self.said())
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
        verdict(&self.said())
    }
}

#[cfg(feature = "sqlx")]
impl Classify for sqlx::Error {
    fn verdict(&self) -> Verdict {
        verdict(&self.said())
    }
}

#[cfg(feature = "sea-orm")]
impl Classify for sea_orm::DbErr {
    fn verdict(&self) -> Verdict {
        verdict(&self.said())
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

/// diesel hands on no SQLSTATE: what is not recognised without it may have happened.
#[cfg(feature = "diesel-async")]
impl Classify for diesel::result::Error {
    fn verdict(&self) -> Verdict {
        verdict(&self.said())
    }
}

#[cfg(all(test, any(feature = "sqlx", feature = "diesel-async")))]
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
    fn sea_orm_hands_on_what_sqlx_says() {
        use sea_orm::{ConnAcquireErr, DbErr, RuntimeErr};
        let of = |error: sqlx::Error| DbErr::Query(RuntimeErr::SqlxError(error.into())).verdict();
        assert_eq!(of(sqlx::Error::WorkerCrashed), Verdict::Unknown);
        assert_eq!(of(sqlx::Error::RowNotFound), Verdict::Final);
        assert_eq!(DbErr::ConnectionAcquire(ConnAcquireErr::Timeout).verdict(), Verdict::Again);
    }

    #[cfg(feature = "diesel-async")]
    #[test]
    fn what_diesel_does_not_tell_may_have_happened() {
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
