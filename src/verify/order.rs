//! The order of the first records of each key.

use std::io;
use std::path::Path;
use uuid::Uuid;

use super::bytes::{Reader, Writer};
use super::findings::{Finding, Findings, Kind};
use super::sorter::Sorter;

const PLACE_BYTES: usize = 57;

/// The first record of an event that the topic still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct First {
    pub topic: u32,
    pub partition: u32,
    /// The digest of the key.
    pub key: [u8; 16],
    pub offset: i64,
    /// The row, which determines the order.
    pub id: i64,
    pub event_id: Uuid,
    /// Whether the event never had an earlier record.
    pub is_certain: bool,
}

/// Collects the first records, and finds those that follow a later event of their key.
///
/// If an earlier record of an event may be gone, its own place proves nothing against it. It still proves that events before
/// it came too late, because its first record was here or earlier.
pub(super) struct Order(Sorter<PLACE_BYTES>);

impl Order {
    pub(super) fn new(folder: &Path) -> Order {
        Order(Sorter::new(folder))
    }

    pub(super) fn push(&mut self, first: &First) -> io::Result<()> {
        let First { topic, partition, key, offset, id, event_id, is_certain } = first;
        let entry = Writer::new().u32(*topic).u32(*partition).put(key).i64(*offset).i64(*id);
        self.0.push(entry.put(event_id.as_bytes()).u8((*is_certain).into()).entry())
    }

    pub(super) fn judge(self, findings: &mut Findings) -> io::Result<()> {
        let mut latest: Option<First> = None;
        for entry in self.0.sorted()? {
            let first = decode(&entry?);
            match latest {
                Some(before) if before.is_of_same_key(&first) && first.id < before.id => {
                    if first.is_certain {
                        findings.add(first.reordered());
                    } else {
                        findings.unjudged.order += 1;
                    }
                }
                _ => latest = Some(first),
            }
        }
        Ok(())
    }
}

impl First {
    fn is_of_same_key(&self, other: &First) -> bool {
        (self.topic, self.partition, self.key) == (other.topic, other.partition, other.key)
    }

    fn reordered(&self) -> Finding {
        Finding {
            kind: Kind::Reordered,
            event_id: Some(self.event_id),
            outbox_id: Some(self.id),
            topic: self.topic,
            partition: self.partition,
            offset: Some(self.offset),
            parts: Vec::new(),
        }
    }
}

fn decode(entry: &[u8; PLACE_BYTES]) -> First {
    let mut reader = Reader(entry);
    First {
        topic: reader.u32(),
        partition: reader.u32(),
        key: reader.take(),
        offset: reader.i64(),
        id: reader.i64(),
        event_id: Uuid::from_bytes(reader.take()),
        is_certain: reader.u8() != 0,
    }
}
