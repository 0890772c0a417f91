//! Verdicts for the errors of this crate and of the drivers. The verdicts for drivers with several versions are next to the errors of
//! each driver.

use super::{Classify, Verdict};
use crate::error::{Details, DriverError, Error, PostgresError, WithoutSqlstate};

impl Verdict {
    pub(crate) fn of_driver(error: &impl DriverError) -> Verdict {
        verdict(&error.details())
    }
}

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
        Verdict::of_driver(self)
    }
}

/// diesel does not expose the SQLSTATE. The outcome of an error that is not recognized is unknown.
#[cfg(feature = "_diesel")]
impl Classify for diesel::result::Error {
    fn verdict(&self) -> Verdict {
        Verdict::of_driver(self)
    }
}

#[cfg(all(test, feature = "_diesel"))]
mod tests {
    use super::*;

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
