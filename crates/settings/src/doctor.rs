//! The findings of `outbox-relay doctor`. The crates that run the checks define the codes of their findings.

use std::fmt;

/// A kind of finding. The words are stable, because scripts filter by them. A word that is no longer used must not be reused.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// The word to filter by.
    pub word: &'static str,
    pub severity: Severity,
    /// What it means for the events.
    pub means: &'static str,
}

/// Defines the codes of a file's checks, each as a constant, and the list of them in the order of `docs/doctor.md`.
#[macro_export]
macro_rules! codes {
    ($($constant:ident = $severity:ident, $word:literal, $means:literal;)*) => {
        $(#[doc = $means] pub static $constant: $crate::doctor::Code = $crate::doctor::Code {
            word: $word,
            severity: $crate::doctor::Severity::$severity,
            means: $means,
        };)*

        pub static CODES: &[&$crate::doctor::Code] = &[$(&$constant),*];
    };
}

codes! {
    CHECK_SKIPPED = Note, "check-skipped",
        "this check could not run";
}

/// How bad a finding is, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Good to know.
    Note,
    /// A failure to expect under load or after a fault, an unneeded privilege, or a setting to review.
    Warning,
    /// Events are not published, a guarantee is broken, or the configuration cannot be used.
    Error,
}

impl Severity {
    pub fn word(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One finding. Contains no payload and no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub code: &'static Code,
    /// The table, role, topic or host that it is about.
    pub place: String,
    pub problem: String,
    /// The statement or command to run, or the setting to change.
    pub remedy: String,
}

impl Code {
    pub fn found(
        &'static self,
        place: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { code: self, place: place.to_string(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}. Fix: {}", self.place, self.problem, self.remedy)
    }
}

/// A topic of events in the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInUse {
    /// The name, which is valid.
    pub topic: String,
    /// Whether there are events for it. If not, the configuration names it.
    pub has_events: bool,
    /// How many of the examined rows wait for it.
    pub waiting: i64,
    /// The size of the largest of them, in bytes.
    pub largest_bytes: i64,
}

impl TopicInUse {
    /// No row is known to wait for it.
    pub fn new(topic: String, has_events: bool) -> TopicInUse {
        TopicInUse { topic, has_events, waiting: 0, largest_bytes: 0 }
    }
}
