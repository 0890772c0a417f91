//! What `outbox-relay doctor` finds, as plain data: [`codes`] says what each finding means, `postgres/doctor/` and
//! `kafka/doctor.rs` look, `cli/doctor/` prints.

pub mod codes;

pub(crate) use codes::Code;

/// How bad a finding is. The order is that of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Good to know.
    Note,
    /// It works, and will not under a load or a fault that is to be expected; or somebody may do more than is needed.
    Warning,
    /// Events do not flow, or a promise does not hold.
    Error,
}

impl Severity {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One thing that was found. Holds no payload and no secret.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// What kind of thing it is.
    pub code: &'static Code,
    /// The table, role, topic or host that it is about.
    pub place: String,
    /// What was found there.
    pub problem: String,
    /// What mends it: the statement or command to run, or the setting to change.
    pub remedy: String,
}

impl Code {
    /// A finding of this kind.
    pub(crate) fn found(
        &'static self,
        place: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { code: self, place: place.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// A topic that events go to, as the outbox tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicInUse {
    /// Its name, one that Kafka allows.
    pub topic: String,
    /// Of the rows that were looked at, those that wait for it.
    pub waiting: i64,
    /// The length of the largest of them, in bytes.
    pub largest_bytes: i64,
}
