//! What each row becomes: a record, a dead letter, or a row that waits.

mod bad_rows;
mod content;
mod huge_rows;
mod partition;
mod payload_type;
mod record_size;
mod topic_column;
mod topics_by_event_type;
pub(crate) mod unreadable;
mod waves;
