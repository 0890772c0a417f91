//! The decisions of `outbox-relay verify`: compares the history of the outbox with the records in Kafka.
//!
//! Rows and records become entries of a fixed size. They are sorted by event id in temporary files, so memory does not depend
//! on their number. One pass over the sorted entries finds lost, repeated, altered and unknown records. What it learns about
//! the order is sorted by key, and a second pass finds reordered events.

pub(crate) mod bytes;
pub(crate) mod entry;
pub(crate) mod findings;
pub(crate) mod judge;
pub(crate) mod order;
pub(crate) mod scope;
pub(crate) mod sorter;
