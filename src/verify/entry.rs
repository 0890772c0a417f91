//! A row, a known event id or a record, in a form that is sorted by event id.

use uuid::Uuid;

use super::bytes::{Reader, Writer};
use kafka::operate::reader::Fingerprint;
use kafka::operate::reader::Record;

/// The size of an entry in bytes.
pub(crate) const ENTRY_BYTES: usize = 90;

/// A row of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub id: i64,
    /// What must be in Kafka. `None` if the row is not judged: it is unsent, was created outside the range, belongs to a topic
    /// that is not verified, or cannot be published with the present configuration.
    pub expected: Option<Expected>,
}

/// The record of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The place in [`super::scope::Scope::topics`].
    pub topic: u32,
    pub partition: u32,
    /// In microseconds since 1970.
    pub created_us: i64,
    pub fingerprint: Fingerprint,
}

/// What is known about an event id. The variants are sorted in this order, rows by id and records by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Row(Row),
    /// The event is, or was, a dead letter.
    DeadLetter,
    /// An operator has replayed the event.
    Replay,
    /// An operator has copied the event to the topic at this place in [`super::scope::Scope::topics`].
    Copy(u32),
    Record(Record),
}

/// An entry of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub event_id: Uuid,
    pub known: Known,
}

const JUDGED_ROW: u8 = 0;
const OTHER_ROW: u8 = 1;
const DEAD_LETTER: u8 = 2;
const REPLAY: u8 = 3;
const COPY: u8 = 4;
const RECORD: u8 = 5;

impl Entry {
    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let entry = Writer::new().put(self.event_id.as_bytes());
        match &self.known {
            Known::Row(Row { id, expected: Some(expected) }) => {
                let Expected { topic, partition, created_us, fingerprint } = expected;
                let entry = entry.u8(JUDGED_ROW).i64(*id).u32(*topic).u32(*partition).i64(*created_us);
                put(entry, fingerprint)
            }
            Known::Row(Row { id, expected: None }) => entry.u8(OTHER_ROW).i64(*id),
            Known::DeadLetter => entry.u8(DEAD_LETTER),
            Known::Replay => entry.u8(REPLAY),
            Known::Copy(topic) => entry.u8(COPY).u32(*topic),
            Known::Record(Record { topic, partition, offset, at_us, fingerprint }) => {
                let entry = entry.u8(RECORD).u32(*topic).u32(*partition).i64(*offset).i64(*at_us);
                put(entry, fingerprint)
            }
        }
        .entry()
    }

    pub(crate) fn decode(bytes: &[u8; ENTRY_BYTES]) -> Entry {
        let mut reader = Reader(bytes);
        let event_id = Uuid::from_bytes(reader.take());
        let known = match reader.u8() {
            JUDGED_ROW => {
                let id = reader.i64();
                let (topic, partition, created_us) = (reader.u32(), reader.u32(), reader.i64());
                let fingerprint = take(&mut reader);
                Known::Row(Row { id, expected: Some(Expected { topic, partition, created_us, fingerprint }) })
            }
            OTHER_ROW => Known::Row(Row { id: reader.i64(), expected: None }),
            DEAD_LETTER => Known::DeadLetter,
            REPLAY => Known::Replay,
            COPY => Known::Copy(reader.u32()),
            _ => {
                let (topic, partition) = (reader.u32(), reader.u32());
                let (offset, at_us) = (reader.i64(), reader.i64());
                let fingerprint = take(&mut reader);
                Known::Record(Record { topic, partition, offset, at_us, fingerprint })
            }
        };
        Entry { event_id, known }
    }
}

fn put(entry: Writer<ENTRY_BYTES>, fingerprint: &Fingerprint) -> Writer<ENTRY_BYTES> {
    entry.put(&fingerprint.key).put(&fingerprint.value).put(&fingerprint.headers)
}

fn take(reader: &mut Reader<'_>) -> Fingerprint {
    Fingerprint { key: reader.take(), value: reader.take(), headers: reader.take() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_written_and_sort_by_event() {
        let fingerprint = Fingerprint { key: [1; 16], value: [2; 16], headers: [3; 16] };
        let expected = Expected { topic: 7, partition: 8, created_us: -9, fingerprint };
        let record = |offset| Known::Record(Record { topic: 1, partition: 2, offset, at_us: 4, fingerprint });
        let known = [
            Known::Row(Row { id: -1, expected: Some(expected) }),
            Known::Row(Row { id: i64::MAX, expected: Some(expected) }),
            Known::Row(Row { id: 5, expected: None }),
            Known::DeadLetter,
            Known::Replay,
            Known::Copy(7),
            record(1),
            record(256),
        ];
        let entries =
            [1, 2].map(|id| known.map(|known| Entry { event_id: Uuid::from_u128(id), known })).concat();
        let encoded: Vec<_> = entries.iter().map(Entry::encode).collect();
        assert!(encoded.is_sorted());
        assert_eq!(encoded.iter().map(Entry::decode).collect::<Vec<_>>(), entries);
    }
}
