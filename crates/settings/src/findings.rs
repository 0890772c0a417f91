//! Errors and warnings about a configuration, each with its place and a remedy.

pub use crate::doctor::Severity;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Line {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The line, without values that may be secret.
        text: String,
    },
    /// The configuration file as a whole.
    File(PathBuf),
    Variable(String),
    /// No place, because there is no file.
    Nowhere,
}

impl Place {
    pub fn line(&self) -> Option<usize> {
        match self {
            Place::Line { line, .. } => Some(*line),
            _ => None,
        }
    }
}

/// A problem of the configuration. It never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// An error, or a warning if the configuration can be used.
    pub severity: Severity,
    pub place: Place,
    pub message: String,
    /// What to do; may be empty.
    pub help: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub message: String,
    pub help: String,
}

impl Problem {
    pub fn new(message: impl Into<String>, help: impl Into<String>) -> Problem {
        Problem { message: message.into(), help: help.into() }
    }
}

/// All errors and warnings, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Whether there is an error, so that the configuration cannot be used.
    pub fn has_errors(&self) -> bool {
        self.iter().any(|finding| finding.severity == Severity::Error)
    }

    pub fn error(&mut self, place: &Place, problem: Problem) {
        self.add(Severity::Error, place, problem);
    }

    pub fn warn(&mut self, place: &Place, problem: Problem) {
        self.add(Severity::Warning, place, problem);
    }

    fn add(&mut self, severity: Severity, place: &Place, Problem { message, help }: Problem) {
        self.0.push(Finding { severity, place: place.clone(), message, help });
    }

    /// Sorts findings by line. Those without a line come last.
    pub fn sort(&mut self) {
        self.0.sort_by(|a, b| a.place.cmp(&b.place));
        self.0.dedup();
    }
}

impl Deref for Findings {
    type Target = [Finding];

    fn deref(&self) -> &[Finding] {
        &self.0
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.severity.word())?;
        match &self.place {
            Place::Line { path, line, text } => {
                write!(formatter, "{}:{line}: {}\n  {line} | {text}", path.display(), self.message)?;
            }
            Place::File(path) => write!(formatter, "{}: {}", path.display(), self.message)?,
            Place::Variable(name) => write!(formatter, "environment variable {name}: {}", self.message)?,
            Place::Nowhere => formatter.write_str(&self.message)?,
        }
        if !self.help.is_empty() {
            write!(formatter, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}
