//! How a command ends: the exit code, and what it says about it.

use std::process::ExitCode;

/// Why a command did not do what it was asked for. The codes of `sysexits.h` where there is one.
#[derive(Debug)]
pub enum Failed {
    /// It failed, or a check found something.
    Failure(anyhow::Error),
    /// The command line is wrong.
    Usage(String),
    /// Postgres or Kafka cannot be reached.
    Unavailable(anyhow::Error),
    /// The configuration or the schema has to be mended first.
    Configuration(anyhow::Error),
}

impl Failed {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failed::Failure(_) => 1,
            Failed::Usage(_) => 2,
            Failed::Unavailable(_) => 69,
            Failed::Configuration(_) => 78,
        }
    }

    /// Says it on stderr.
    pub fn report(self) -> ExitCode {
        let code = self.code();
        match self {
            Failed::Usage(text) => eprintln!("error: {text}"),
            Failed::Failure(error) | Failed::Unavailable(error) | Failed::Configuration(error) => {
                eprintln!("error: {error:#}");
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
