//! Errors and warnings about a configuration, each with its place and a remedy.

use std::fmt;
use std::path::PathBuf;

/// Whether a finding stops the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but should be reviewed.
    Warning,
}

/// The place of a finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A line of the configuration file.
    Line {
        /// The configuration file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The line, without values that may be secret.
        text: String,
    },
    /// The configuration file as a whole.
    File(PathBuf),
    /// An environment variable.
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
    /// Whether it stops the program.
    pub severity: Severity,
    /// The place.
    pub place: Place,
    /// What is wrong.
    pub message: String,
    /// What to do; may be empty.
    pub help: String,
}

/// The message and the help of a finding, without its place.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// All findings, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.0.iter()
    }

    /// Whether there are no findings.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many findings there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

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

    pub fn extend(&mut self, place: &Place, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            self.error(place, problem);
        }
    }

    /// Sorts findings by line. Those without a line come last.
    pub fn sort(&mut self) {
        self.0.sort_by(|a, b| a.place.cmp(&b.place));
        self.0.dedup();
    }
}

impl std::error::Error for Findings {}

impl<'a> IntoIterator for &'a Findings {
    type Item = &'a Finding;
    type IntoIter = std::slice::Iter<'a, Finding>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let findings: Vec<String> = self.iter().map(ToString::to_string).collect();
        formatter.write_str(&findings.join("\n"))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        })?;
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
