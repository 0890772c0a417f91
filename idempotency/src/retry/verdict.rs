//! Whether a failed attempt can be retried.

#[allow(unused_imports)] // without a driver
use pg_outbox::__private::drivers;
use pg_outbox::__private::{Details, WithoutSqlstate};
use pg_outbox::PostgresError;

use crate::database::DatabaseError;
use crate::idempotency::{self, PhaseError};
use crate::{inbox, once};

/// The outcome of a failed attempt.
///
/// ```
/// use pg_idempotency::retry::Verdict;
///
/// assert_eq!(Verdict::of_sqlstate("40001"), Verdict::Again);
/// assert_eq!(Verdict::of_sqlstate("08006"), Verdict::Unknown);
/// assert_eq!(Verdict::of_sqlstate("23505"), Verdict::Final);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The attempt had no effect, and a retry can succeed.
    Again,
    /// The attempt may have had its effect.
    Unknown,
    /// The attempt had no effect, and a retry would fail too.
    Final,
}

/// An error that determines the [`Verdict`] of its attempt. Implement it for the application's errors.
///
/// ```
/// use pg_idempotency::retry::{Classify, Verdict};
///
/// enum Failed {
///     Busy,
///     Outbox(pg_outbox::Error),
/// }
///
/// impl Classify for Failed {
///     fn verdict(&self) -> Verdict {
///         match self {
///             Failed::Busy => Verdict::Again,
///             Failed::Outbox(error) => error.verdict(),
///         }
///     }
/// }
///
/// assert_eq!(Failed::Busy.verdict(), Verdict::Again);
/// ```
pub trait Classify {
    /// The verdict.
    fn verdict(&self) -> Verdict;
}

/// The SQLSTATEs after which a transaction had no effect and can be retried: serialization failure, deadlock, lock not
/// available, too many connections, and a server that is starting or stopping.
pub const RETRYABLE_SQLSTATES: [&str; 5] = ["40001", "40P01", "55P03", "53300", "57P03"];

/// The connection was lost, or the server does not know the outcome. Class 08 (connection exceptions) counts too.
const UNKNOWN_SQLSTATES: [&str; 6] = ["40003", "57P01", "57P02", "57P05", "25P03", "25P04"];

impl Verdict {
    /// The verdict for an error with this SQLSTATE.
    pub fn of_sqlstate(code: &str) -> Verdict {
        if RETRYABLE_SQLSTATES.contains(&code) {
            Verdict::Again
        } else if code.starts_with("08") || UNKNOWN_SQLSTATES.contains(&code) {
            Verdict::Unknown
        } else {
            Verdict::Final
        }
    }
}

fn of(details: &Details) -> Verdict {
    match (&details.sqlstate, details.without_sqlstate) {
        (Some(sqlstate), _) => Verdict::of_sqlstate(sqlstate),
        (None, WithoutSqlstate::Rejected) => Verdict::Final,
        (None, WithoutSqlstate::NoConnection) => Verdict::Again,
        (None, WithoutSqlstate::ConnectionLost | WithoutSqlstate::NotExposed) => Verdict::Unknown,
    }
}

impl Classify for PostgresError {
    fn verdict(&self) -> Verdict {
        of(self.details())
    }
}

impl Classify for pg_outbox::Error {
    fn verdict(&self) -> Verdict {
        match self {
            pg_outbox::Error::Postgres { source, .. } => source.verdict(),
            _ => Verdict::Final,
        }
    }
}

impl Classify for DatabaseError {
    fn verdict(&self) -> Verdict {
        self.postgres().verdict()
    }
}

impl Classify for inbox::Error {
    fn verdict(&self) -> Verdict {
        match self {
            inbox::Error::Database(error) => error.verdict(),
            _ => Verdict::Final,
        }
    }
}

impl Classify for once::Error {
    fn verdict(&self) -> Verdict {
        match self {
            once::Error::Database(error) => error.verdict(),
            _ => Verdict::Final,
        }
    }
}

/// A lost lock means that the attempt had no effect. A retry finds out the state of the request.
impl Classify for idempotency::Error {
    fn verdict(&self) -> Verdict {
        match self {
            idempotency::Error::Database(error) => error.verdict(),
            idempotency::Error::LockLost => Verdict::Again,
            _ => Verdict::Final,
        }
    }
}

impl<E: Classify> Classify for PhaseError<E> {
    fn verdict(&self) -> Verdict {
        match self {
            PhaseError::Work(error) => error.verdict(),
            PhaseError::Idempotency(error) => error.verdict(),
            PhaseError::Begin(error) | PhaseError::Commit(error) => error.verdict(),
            PhaseError::Data(_) | PhaseError::Uncertain => Verdict::Final,
        }
    }
}

/// The error of a driver, except that diesel does not expose the SQLSTATE: the outcome of an error that is not recognized is
/// unknown.
#[allow(unused_macros)] // without a driver
macro_rules! driver {
    ($driver:ident, $($error:ident)::+) => {
        impl Classify for drivers::$driver::$($error)::+ {
            fn verdict(&self) -> Verdict {
                of(&pg_outbox::__private::DriverError::details(self))
            }
        }
    };
}

/// The errors of a version of sea-orm.
#[allow(unused_macros)] // without sea-orm
macro_rules! sea_orm {
    ($sea_orm:ident) => {
        driver!($sea_orm, DbErr);

        impl<E: Classify + std::error::Error> Classify for drivers::$sea_orm::TransactionError<E> {
            fn verdict(&self) -> Verdict {
                match self {
                    Self::Connection(error) => error.verdict(),
                    Self::Transaction(error) => error.verdict(),
                }
            }
        }
    };
}

#[cfg(feature = "tokio-postgres")]
driver!(tokio_postgres, Error);
#[cfg(feature = "sqlx-08")]
driver!(sqlx_08, Error);
#[cfg(feature = "sqlx-09")]
driver!(sqlx_09, Error);
#[cfg(feature = "sea-orm-1")]
sea_orm!(sea_orm_1);
#[cfg(feature = "sea-orm-2")]
sea_orm!(sea_orm_2);
#[cfg(feature = "_diesel")]
driver!(diesel, result::Error);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_have_the_expected_verdict() {
        for code in RETRYABLE_SQLSTATES {
            assert_eq!(Verdict::of_sqlstate(code), Verdict::Again, "{code}");
        }
        for code in ["08006", "08007", "57P01", "40003", "25P03", "25P04"] {
            assert_eq!(Verdict::of_sqlstate(code), Verdict::Unknown, "{code}");
        }
        for code in ["23505", "22P02", "42501", "57014", "OB001", "40000"] {
            assert_eq!(Verdict::of_sqlstate(code), Verdict::Final, "{code}");
        }
    }

    /// The same for each version of sqlx.
    #[allow(unused_macros)] // without sqlx
    macro_rules! sqlx {
        ($sqlx:ident, $test:ident) => {
            #[test]
            fn $test() {
                use drivers::$sqlx::Error;
                assert_eq!(Error::PoolTimedOut.verdict(), Verdict::Again);
                assert_eq!(Error::RowNotFound.verdict(), Verdict::Final);
                assert_eq!(PostgresError::from(Error::WorkerCrashed).verdict(), Verdict::Unknown);
            }
        };
    }

    #[cfg(feature = "sqlx-08")]
    sqlx!(sqlx_08, a_pool_of_sqlx_08_without_a_free_connection_has_sent_nothing);
    #[cfg(feature = "sqlx-09")]
    sqlx!(sqlx_09, a_pool_of_sqlx_09_without_a_free_connection_has_sent_nothing);

    /// The same for each version of sea-orm.
    #[allow(unused_macros)] // without sea-orm
    macro_rules! sea_orm {
        ($sea_orm:ident, $test:ident) => {
            #[test]
            #[allow(clippy::useless_conversion)] // sea-orm 2 has the error in an Arc
            fn $test() {
                use drivers::$sea_orm::{ConnAcquireErr, DbErr, RuntimeErr, sqlx};
                let of = |error: sqlx::Error| DbErr::Query(RuntimeErr::SqlxError(error.into())).verdict();
                assert_eq!(of(sqlx::Error::WorkerCrashed), Verdict::Unknown);
                assert_eq!(of(sqlx::Error::RowNotFound), Verdict::Final);
                assert_eq!(DbErr::ConnectionAcquire(ConnAcquireErr::Timeout).verdict(), Verdict::Again);
            }
        };
    }

    #[cfg(feature = "sea-orm-1")]
    sea_orm!(sea_orm_1, errors_of_sea_orm_1_have_the_verdict_of_their_sqlx_error);
    #[cfg(feature = "sea-orm-2")]
    sea_orm!(sea_orm_2, errors_of_sea_orm_2_have_the_verdict_of_their_sqlx_error);

    #[cfg(feature = "_diesel")]
    #[test]
    fn errors_of_diesel_that_are_not_recognized_are_unknown() {
        use drivers::diesel::result::{DatabaseErrorKind, Error};
        let of = |kind, message: &str| Error::DatabaseError(kind, Box::new(message.to_owned())).verdict();
        assert_eq!(of(DatabaseErrorKind::Unknown, "Verklemmung entdeckt"), Verdict::Unknown);
        assert_eq!(of(DatabaseErrorKind::Unknown, "deadlock detected"), Verdict::Again);
        assert_eq!(of(DatabaseErrorKind::SerializationFailure, ""), Verdict::Again);
        assert_eq!(of(DatabaseErrorKind::UniqueViolation, ""), Verdict::Final);
        assert_eq!(of(DatabaseErrorKind::UnableToSendCommand, "connection closed"), Verdict::Unknown);
        assert_eq!(Error::NotFound.verdict(), Verdict::Final);
    }
}
