//! Why a command failed, and its exit code.

use super::output;
use crate::supervisor::StartError;
use anyhow::Error;
use relay::failure::{FailureKind, FaultKind, KafkaFailure, PostgresFault};
use relay::reason::{AUTHENTICATION, CONFIGURATION, TLS, TOKEN, fix, remedy};
use std::fmt;
use std::process::ExitCode;

/// Why a command failed. Uses the codes of `sysexits.h` where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The command failed, or a check found errors.
    #[error("{0:#}")]
    Failure(#[from] Error),
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// Postgres or Kafka is unreachable.
    #[error("{0:#}")]
    Unavailable(Error),
    /// The configuration or the schema is invalid.
    #[error("{0:#}")]
    Configuration(Error),
}

impl Failed {
    pub(crate) fn failure(text: impl fmt::Display) -> Failed {
        Failed::Failure(Error::msg(text.to_string()))
    }

    pub(crate) fn unavailable(text: impl fmt::Display) -> Failed {
        Failed::Unavailable(Error::msg(text.to_string()))
    }

    pub(crate) fn configuration(text: impl fmt::Display) -> Failed {
        Failed::Configuration(Error::msg(text.to_string()))
    }

    /// Adds to the error, for example what was done before. An invalid command line stays as it is.
    pub(crate) fn map(self, change: impl FnOnce(Error) -> Error) -> Failed {
        match self {
            Failed::Failure(error) => Failed::Failure(change(error)),
            Failed::Unavailable(error) => Failed::Unavailable(change(error)),
            Failed::Configuration(error) => Failed::Configuration(change(error)),
            usage @ Failed::Usage(_) => usage,
        }
    }

    /// Prints the error on stderr and returns the exit code.
    pub fn report(self) -> ExitCode {
        output::note_with_priority(3, &format!("error: {self}"));
        ExitCode::from(match self {
            Failed::Failure(_) => 1,
            Failed::Usage(_) => 2,
            Failed::Unavailable(_) => 69,
            Failed::Configuration(_) => 78,
        })
    }
}

impl From<PostgresFault> for Failed {
    fn from(fault: PostgresFault) -> Failed {
        match fault.kind {
            FaultKind::Unavailable => Failed::Unavailable(fault.into()),
            _ => Failed::Failure(fault.into()),
        }
    }
}

impl From<KafkaFailure> for Failed {
    fn from(failure: KafkaFailure) -> Failed {
        if failure.reason == CONFIGURATION.word {
            return Failed::configuration(format!("[kafka.properties] is invalid: {}", failure.error));
        }
        let error = format!("Kafka failed: {failure}. {}", fix(remedy(failure.reason)));
        match failure.kind {
            FailureKind::Cluster | FailureKind::Unknown => Failed::unavailable(error),
            FailureKind::Row | FailureKind::Topic | FailureKind::Session => Failed::failure(error),
        }
    }
}

/// For a command that checks the configuration: a refused login counts as an error in it.
pub(crate) fn not_probed(failure: KafkaFailure) -> Failed {
    match (is_refused(&failure), Failed::from(failure)) {
        (true, Failed::Unavailable(error)) => Failed::Configuration(error),
        (_, failed) => failed,
    }
}

/// Whether Kafka refuses the configured login, which another attempt does not change.
pub(crate) fn is_refused(failure: &KafkaFailure) -> bool {
    [CONFIGURATION, AUTHENTICATION, TOKEN, TLS].iter().any(|reason| failure.reason == reason.word)
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Failed {
        match error {
            StartError::Unavailable(text) => Failed::unavailable(text),
            StartError::Older(text) | StartError::Unfit(text) => Failed::configuration(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::reason::BROKERS_DOWN;

    #[test]
    fn a_refused_login_is_an_error_of_the_configuration() {
        let refused = not_probed(AUTHENTICATION.failure("wrong password"));
        assert!(matches!(refused, Failed::Configuration(_)), "{refused:?}");
        let down = not_probed(BROKERS_DOWN.failure("no answer"));
        assert!(matches!(down, Failed::Unavailable(_)), "{down:?}");
    }
}
