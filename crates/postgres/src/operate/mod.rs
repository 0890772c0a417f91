//! Operator actions on dead letters, blocked keys and pauses, their records, and the rows of the outbox for `verify` and `replay`.

pub mod acts;
pub mod blocked_keys;
pub mod dead_letters;
pub mod header_changes;
pub mod outbox_rows;
pub mod pauses;
pub mod replay;
pub mod selection;
pub mod sent;
