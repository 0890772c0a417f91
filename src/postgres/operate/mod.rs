//! What operators do with events and topics, and the record of it.

pub mod acts;
pub mod blocked_keys;
pub mod dead_letters;
pub mod pauses;
pub mod selection;
