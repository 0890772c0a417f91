//! What the cycle needs to know of one row of the outbox.

use super::lane::Lane;
use uuid::Uuid;

/// One claimed row. Everything is borrowed from where the row was read into: the per-row path copies nothing before
/// the record is handed to the Kafka client. Texts are bytes, since a database in `SQL_ASCII` promises no UTF-8.
pub trait Event {
    /// Order inside a key.
    fn id(&self) -> i64;
    /// Identity of the event for consumers.
    fn event_id(&self) -> Uuid;
    /// The lane of its key.
    fn lane(&self) -> Lane;
    /// Decides the topic.
    fn aggregate_type(&self) -> &[u8];
    /// The Kafka key, `aggregate_id`.
    fn key(&self) -> &[u8];
    /// What happened.
    fn event_type(&self) -> &[u8];
    /// The Kafka value.
    fn payload(&self) -> Payload<'_>;
    /// The row's own headers, a JSON text.
    fn headers(&self) -> Option<&[u8]>;
    /// When the row was inserted, in microseconds since 1970.
    fn created_at_us(&self) -> i64;
    /// What the row occupies in memory, in bytes, for the batch's byte budget.
    fn size(&self) -> usize;
}

/// The value of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Sent as it is.
    Bytes(&'a [u8]),
    /// A NULL payload, which Kafka's log compaction takes as a delete.
    Tombstone,
    /// The event is longer than the largest record that may be sent, for whatever part of it; recognised by its length,
    /// and nothing large of it was fetched.
    TooLarge {
        /// The length of the whole event in bytes.
        bytes: i64,
    },
}
