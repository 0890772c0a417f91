//! Deliberate mistakes that are common in practice. Do not copy this code: it exists to show that
//! `tests/chaos_payments` detects each of them.

/// What a process does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mistake {
    /// The consumer treats each record as new.
    NoInbox,
    /// The API sends the provider another key with each attempt.
    NewKeyForProvider,
    /// The API stores the response after the transaction of the change.
    ResponseAfterCommit,
}
