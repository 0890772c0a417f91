//! One row of the outbox, as the cycle sees it.

use crate::Lane;
use uuid::Uuid;

/// One claimed row. Everything is borrowed from the buffer that the row was read into, and texts are bytes, so nothing is
/// copied before the record is passed to the Kafka client.
pub trait Event {
    /// Determines the order within a key.
    fn id(&self) -> i64;
    /// Identity of the event for consumers.
    fn event_id(&self) -> Uuid;
    fn lane(&self) -> Lane;
    /// May determine the topic.
    fn aggregate_type(&self) -> &[u8];
    /// The topic that the event names, if it names one.
    fn topic(&self) -> Option<&[u8]> {
        None
    }
    /// The Kafka key, `aggregate_id`.
    fn key(&self) -> &[u8];
    /// The type of the event. May determine the topic.
    fn event_type(&self) -> &[u8];
    fn payload(&self) -> Payload<'_>;
    /// The row's own headers, as JSON text. `None` for NULL and for JSON null.
    fn headers(&self) -> Option<&[u8]>;
    /// When the row was inserted, in microseconds since 1970.
    fn created_at_us(&self) -> i64;
    /// The memory that the row occupies, in bytes, for the batch's byte limit.
    fn size(&self) -> usize;
}

/// The value of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    Bytes(&'a [u8]),
    /// A NULL payload, which Kafka's log compaction treats as a delete.
    Tombstone,
    /// The event is larger than the largest allowed record. Its large parts were not fetched.
    TooLarge {
        /// The length of the whole event in bytes.
        bytes: i64,
    },
}
