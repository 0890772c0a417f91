//! How a command ends: the exit code and the error message.

use super::terminal::output::note;
use std::process::ExitCode;

/// Why a command failed. Uses the codes of `sysexits.h` where there is one.
#[derive(Debug)]
pub enum Failed {
    /// The command failed, or a check found errors.
    Failure(anyhow::Error),
    /// The command line is invalid.
    Usage(String),
    /// Postgres or Kafka is unreachable.
    Unavailable(anyhow::Error),
    /// The configuration or the schema is invalid.
    Configuration(anyhow::Error),
}

impl Failed {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failed::Failure(_) => 1,
            Failed::Usage(_) => 2,
            Failed::Unavailable(_) => 69,
            Failed::Configuration(_) => 78,
        }
    }

    /// Prints the error on stderr and returns the exit code.
    pub fn report(self) -> ExitCode {
        let code = self.code();
        match self {
            Failed::Usage(text) => note(&format!("error: {text}")),
            Failed::Failure(error) | Failed::Unavailable(error) | Failed::Configuration(error) => {
                note(&format!("error: {error:#}"));
            }
        }
        ExitCode::from(code)
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Failed {
        Failed::Failure(error)
    }
}
