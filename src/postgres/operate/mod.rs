//! Operator actions on dead letters, blocked keys and pauses, their records, and the rows of the outbox for `verify` and `replay`.

pub(crate) mod acts;
pub(crate) mod blocked_keys;
pub(crate) mod dead_letters;
pub(crate) mod header_changes;
pub(crate) mod outbox_rows;
pub(crate) mod pauses;
pub(crate) mod replay;
pub(crate) mod selection;
pub(crate) mod sent;
