//! Operator actions on dead letters, blocked keys and pauses, their records, and the history of the events.

pub(crate) mod acts;
pub(crate) mod blocked_keys;
pub(crate) mod dead_letters;
pub(crate) mod history;
pub(crate) mod pauses;
pub(crate) mod replay;
pub(crate) mod selection;
pub(crate) mod sent;
