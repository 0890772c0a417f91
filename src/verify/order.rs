//! The order of the first records of each key.

use std::io;
use std::path::Path;
use uuid::Uuid;

use super::bytes::{Reader, Writer};
use super::findings::{Finding, Findings, Kind};
use super::sorter::Sorter;

const PLACE_BYTES: usize = 56;

/// The first record of an event.
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
}

/// Collects the first records, and finds those that follow a later event of their key.
pub(super) struct Order(Sorter<PLACE_BYTES>);

impl Order {
    pub(super) fn new(folder: &Path) -> Order {
        Order(Sorter::new(folder))
    }

    pub(super) fn push(&mut self, first: &First) -> io::Result<()> {
        let First { topic, partition, key, offset, id, event_id } = first;
        let entry = Writer::new().u32(*topic).u32(*partition).put(key).i64(*offset).i64(*id);
        self.0.push(entry.put(event_id.as_bytes()).entry())
    }

    pub(super) fn judge(self, findings: &mut Findings) -> io::Result<()> {
        let mut latest: Option<First> = None;
        for entry in self.0.sorted()? {
            let first = decode(&entry?);
            match latest {
                Some(before) if before.is_of_same_key(&first) && first.id < before.id => {
                    findings.add(Finding {
                        kind: Kind::Reordered,
                        event_id: Some(first.event_id),
                        outbox_id: Some(first.id),
                        topic: first.topic,
                        partition: first.partition,
                        offset: Some(first.offset),
                        parts: Vec::new(),
                    });
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
    }
}
