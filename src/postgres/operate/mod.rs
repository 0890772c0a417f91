//! Operator actions on dead letters, blocked keys and pauses, and their history.

pub(crate) mod acts;
pub(crate) mod blocked_keys;
pub(crate) mod dead_letters;
pub(crate) mod pauses;
pub(crate) mod selection;
