//! `[outbox]`: the table, the names of its columns, and how its rows become records.

pub(crate) mod columns;
pub(crate) mod envelope;
pub(crate) mod headers;
pub(crate) mod table;
pub(crate) mod topic_allow;
