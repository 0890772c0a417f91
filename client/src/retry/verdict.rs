/// The outcome of a failed attempt.
///
/// ```
/// use pg_outbox::retry::Verdict;
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
/// use pg_outbox::retry::{Classify, Verdict};
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
const UNKNOWN_SQLSTATES: [&str; 5] = ["40003", "57P01", "57P02", "57P05", "25P03"];

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

mod of_drivers;

#[cfg(feature = "_modules")]
impl Classify for crate::call::DatabaseError {
    fn verdict(&self) -> Verdict {
        self.postgres().verdict()
    }
}

#[cfg(feature = "inbox")]
impl Classify for crate::inbox::Error {
    fn verdict(&self) -> Verdict {
        match self {
            crate::inbox::Error::Database(error) => error.verdict(),
            _ => Verdict::Final,
        }
    }
}

#[cfg(feature = "once")]
impl Classify for crate::once::Error {
    fn verdict(&self) -> Verdict {
        match self {
            crate::once::Error::Database(error) => error.verdict(),
            _ => Verdict::Final,
        }
    }
}

#[cfg(feature = "idempotency")]
mod of_idempotency {
    use super::{Classify, Verdict};
    use crate::idempotency::{Error, PhaseError};

    /// A lost lock means that the attempt had no effect. A retry finds out the state of the request.
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
    fn sqlstates_have_the_expected_verdict() {
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
