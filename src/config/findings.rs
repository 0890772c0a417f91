//! The findings about a configuration, each with its place and the remedy.

use std::fmt;
use std::path::PathBuf;

/// Whether a finding stops the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can be used, and should be thought over.
    Warning,
}

/// Where a finding was made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In one line of the configuration file.
    Line {
        /// The configuration file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The line itself; a value that may be a secret is left out.
        text: String,
    },
    /// In the configuration file as a whole.
    File(PathBuf),
    /// In this environment variable.
    Variable(String),
    /// In the absence of a file.
    Nowhere,
}

impl Place {
    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Place::Line { line, .. } => Some(*line),
            _ => None,
        }
    }
}

/// One thing that is wrong, where it is, and what to do about it. It never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it stops the program.
    pub severity: Severity,
    /// Where it was found.
    pub place: Place,
    /// What is wrong.
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
}

/// A finding about a value, without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) help: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>, help: impl Into<String>) -> Problem {
        Problem { message: message.into(), help: help.into() }
    }
}

/// Everything that was found, errors and warnings, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// All findings, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.0.iter()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many findings there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the configuration cannot be used.
    pub fn has_errors(&self) -> bool {
        self.iter().any(|finding| finding.severity == Severity::Error)
    }

    pub(super) fn error(&mut self, place: &Place, problem: Problem) {
        self.add(Severity::Error, place, problem);
    }

    pub(super) fn warn(&mut self, place: &Place, problem: Problem) {
        self.add(Severity::Warning, place, problem);
    }

    fn add(&mut self, severity: Severity, place: &Place, Problem { message, help }: Problem) {
        self.0.push(Finding { severity, place: place.clone(), message, help });
    }

    pub(super) fn extend(&mut self, place: &Place, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            self.error(place, problem);
        }
    }

    /// Lines of the file first, in their order; what concerns no line last.
    pub(super) fn sort(&mut self) {
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
