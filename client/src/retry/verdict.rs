/// What is known of an attempt that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has definitely not happened, and may succeed if it is tried again.
    Again,
    /// It may have happened.
    Unknown,
    /// It has not happened, and trying again changes nothing.
    Final,
}

/// An error that says what is known of its attempt. Implement it for the application's own errors.
pub trait Classify {
    /// What is known.
    fn verdict(&self) -> Verdict;
}

/// The SQLSTATEs after which a transaction has definitely not happened and is worth another attempt: serialization
/// failure, deadlock, lock not available, too many connections, and a server that starts or stops.
pub const RETRYABLE_SQLSTATES: [&str; 5] = ["40001", "40P01", "55P03", "53300", "57P03"];

/// The connection has ended, or the server says itself that it does not know. Class 08 is that of connections.
const UNKNOWN_SQLSTATES: [&str; 5] = ["40003", "57P01", "57P02", "57P05", "25P03"];

impl Verdict {
    /// What is known after an error of Postgres with this SQLSTATE.
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

#[cfg(feature = "_driver")]
mod of_drivers;

#[cfg(all(feature = "_modules", feature = "_driver"))]
impl Classify for crate::call::DatabaseError {
    fn verdict(&self) -> Verdict {
        self.postgres().verdict()
    }
}

#[cfg(all(feature = "inbox", feature = "_driver"))]
impl Classify for crate::inbox::Error {
    fn verdict(&self) -> Verdict {
        match self {
            crate::inbox::Error::Database(error) => error.verdict(),
            _ => Verdict::Final,
        }
    }
}

#[cfg(all(feature = "once", feature = "_driver"))]
impl Classify for crate::once::Error {
    fn verdict(&self) -> Verdict {
        match self {
            crate::once::Error::Database(error) => error.verdict(),
            _ => Verdict::Final,
        }
    }
}

#[cfg(all(feature = "idempotency", feature = "_driver"))]
mod of_idempotency {
    use super::{Classify, Verdict};
    use crate::idempotency::{Error, PhaseError};

    /// Who has lost a lock has changed nothing; beginning again finds out what became of the request.
    impl Classify for Error {
        fn verdict(&self) -> Verdict {
            match self {
                Error::Database(error) => error.verdict(),
                Error::LockLost => Verdict::Again,
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
                PhaseError::Data(_) => Verdict::Final,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_sqlstate() {
        for code in RETRYABLE_SQLSTATES {
            assert_eq!(Verdict::of_sqlstate(code), Verdict::Again, "{code}");
        }
        for code in ["08006", "08007", "57P01", "40003"] {
            assert_eq!(Verdict::of_sqlstate(code), Verdict::Unknown, "{code}");
        }
        for code in ["23505", "22P02", "42501", "57014", "OB001", "40000"] {
            assert_eq!(Verdict::of_sqlstate(code), Verdict::Final, "{code}");
        }
    }
}
