//! What the cycle needs to know of one row of the outbox.

use crate::relay::lane::Lane;
use uuid::Uuid;

/// One claimed row. Everything is borrowed from where the row was read into: the per-row path copies nothing before
/// the record is handed to the Kafka client. Texts are bytes: none of them is copied into a string.
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

#[cfg(test)]
pub(crate) mod fixture {
    //! Rows for unit tests: number n is of one key, in one lane.

    use super::{Event, Lane, Payload};
    use uuid::Uuid;

    /// Those above 100 are of other types. Those from 50 to 99 are large.
    pub(crate) struct Row(pub(crate) i64);

    /// The size of a large row.
    pub(crate) const LARGE: usize = 100;

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
                _ => b"missing",
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
