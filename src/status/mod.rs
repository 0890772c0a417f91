//! The state of an outbox and its relays: the report of `outbox-relay status` and of the status page, with its verdict.

pub(crate) mod monitor;
pub(crate) mod report;
pub(crate) mod verdict;
