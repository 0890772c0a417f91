//! One row of the outbox, as the cycle sees it.

use crate::lanes::Lane;
use uuid::Uuid;

/// One claimed row. Everything is borrowed from the buffer that the row was read into, and texts are bytes, so nothing is
/// copied before the record is passed to the Kafka client.
pub trait Event {
    /// Determines the order within a key.
    fn id(&self) -> i64;
    /// Identity of the event for consumers.
    fn event_id(&self) -> Uuid;
    /// The lane of its key.
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
    /// The Kafka value.
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
    /// Sent as it is.
    Bytes(&'a [u8]),
    /// A NULL payload, which Kafka's log compaction treats as a delete.
    Tombstone,
    /// The event is larger than the largest allowed record. Its large parts were not fetched.
    TooLarge {
        /// The length of the whole event in bytes.
        bytes: i64,
    },
}

#[cfg(any(test, feature = "fixtures"))]
#[allow(clippy::unwrap_used)] // only for tests
pub mod fixture {
    //! Rows for unit tests, all of one key and one lane.

    use super::{Event, Lane, Payload};
    use uuid::Uuid;

    /// A row with this id. Rows from 100 on are of other types, rows from 300 on of one that no topic can have, and rows from 50 to 99
    /// are large.
    pub struct Row(pub i64);

    /// The size of a large row.
    pub const LARGE: usize = 100;

    impl Event for Row {
        fn id(&self) -> i64 {
            self.0
        }
        fn event_id(&self) -> Uuid {
            Uuid::from_u128(self.0 as u128)
        }
        fn lane(&self) -> Lane {
            Lane::new(0).unwrap()
        }
        fn aggregate_type(&self) -> &[u8] {
            match self.0 {
                ..100 => b"order",
                100..200 => b"silent",
                200..300 => b"missing",
                _ => b"a b",
            }
        }
        fn key(&self) -> &[u8] {
            b"42"
        }
        fn event_type(&self) -> &[u8] {
            b"Changed"
        }
        fn payload(&self) -> Payload<'_> {
            Payload::Tombstone
        }
        fn headers(&self) -> Option<&[u8]> {
            None
        }
        fn created_at_us(&self) -> i64 {
            0
        }
        fn size(&self) -> usize {
            if (50..100).contains(&self.0) { LARGE } else { 1 }
        }
    }
}
