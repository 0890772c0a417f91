//! Mistakes to be made on purpose, each one that is made again and again. Copy none of this: it is there to show that
//! `tests/chaos` finds each of them.

/// What a process does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mistake {
    /// The consumer takes each record for a new one.
    NoInbox,
    /// The API gives the provider another key with each attempt.
    NewKeyForProvider,
    /// The API stores the response after the transaction of the change.
    ResponseAfterCommit,
}
