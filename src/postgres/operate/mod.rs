//! What operators do with events and topics, and the record of it.

pub(crate) mod acts;
pub(crate) mod blocked_keys;
pub(crate) mod dead_letters;
pub(crate) mod pauses;
pub(crate) mod selection;
