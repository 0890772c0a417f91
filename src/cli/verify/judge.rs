//! Compares the rows of each event with its records, and the order of the first records of each key with that of the rows.

use super::entries::{
    ENTRY_WORDS, Entry, Expected, Known, Row, Sorter, pack, pack_place, signed, sortable, unpack,
    unpack_place,
};
use kafka::operate::reader::Record;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use uuid::Uuid;

/// The maximum number of different records that the rows of one event id may have. Rows of one event normally have the same.
const VARIANTS_MAX: usize = 8;

/// How a record, or its absence, differs from the outbox. The worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// An event without a record.
    Lost,
    /// An event whose first record follows that of a later event of its key.
    Reordered,
    /// A record that differs from its event.
    Altered,
    /// A record that belongs to no event.
    Unknown,
    /// A further record of an event.
    Duplicate,
}

const KINDS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub kind: Kind,
    /// `None` if the record has no readable event id.
    pub event_id: Option<String>,
    /// The row; `None` for an unknown record.
    pub outbox_id: Option<i64>,
    pub topic: String,
    pub partition: u32,
    /// Of the record; `None` if there is none.
    pub offset: Option<i64>,
    /// The parts of an altered record that differ.
    pub parts: Vec<&'static str>,
}

/// All findings: the counts, and the first of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Events whose records were judged.
    pub events: u64,
    pub records: u64,
    counts: [u64; KINDS],
    shown_max: usize,
    shown: [Vec<Finding>; KINDS],
    pub unjudged: Unjudged,
}

/// What could not be judged: counts of events, and from `reaped` to `copies` of records. [`super::reasons`] and
/// docs/verify-and-replay.md explain each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Unjudged {
    pub unsent: u64,
    pub unpublishable: u64,
    pub expired: u64,
    pub compacted: u64,
    pub may_be_compacted: u64,
    pub topic_missing: u64,
    pub reaped: u64,
    pub dead_letters: u64,
    pub replayed: u64,
    pub copies: u64,
    pub order: u64,
}

impl Findings {
    /// Keeps up to `shown_max` findings of each kind, and counts the others.
    pub(super) fn new(shown_max: usize, unjudged: Unjudged) -> Findings {
        Findings { shown_max, unjudged, ..Findings::default() }
    }

    fn add(&mut self, finding: Finding) {
        let kind = finding.kind as usize;
        self.counts[kind] += 1;
        if self.shown[kind].len() < self.shown_max {
            self.shown[kind].push(finding);
        }
    }

    pub(super) fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// The number of findings that break a guarantee. Duplicates with the same bytes are allowed after a failure.
    pub(super) fn broken(&self) -> u64 {
        self.counts.iter().sum::<u64>() - self.count(Kind::Duplicate)
    }

    /// The first findings of each kind, worst first.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Finding> {
        self.shown.iter().flatten()
    }
}

/// Judges entries that are sorted by event.
pub(super) struct Judge<'a> {
    scope: &'a Scope,
    findings: Findings,
    /// The first record of each event that the topic still has: the topic with the partition, the key, the offset with the row,
    /// the event, and whether it never had an earlier record. The rows determine the order.
    order: Sorter<5>,
    event: Option<Event>,
}

/// What the entries of one event have shown so far.
#[derive(Default)]
struct Event {
    id: Uuid,
    rows: u64,
    judged: u64,
    /// The first judged row.
    first: Option<(i64, Expected)>,
    variants: Vec<Expected>,
    /// Whether the record of one of its rows is not known.
    is_incomplete: bool,
    is_dead_letter: bool,
    replays: u64,
    copied_to: BTreeSet<u32>,
    /// Without copies.
    records: u64,
    /// The first offset in the expected partition.
    first_offset: Option<i64>,
}

impl<'a> Judge<'a> {
    /// Continues with these findings. The order is sorted in temporary files in this folder.
    pub(super) fn new(scope: &'a Scope, findings: Findings, folder: &Path) -> Judge<'a> {
        Judge { scope, findings, order: Sorter::new(folder), event: None }
    }

    /// Judges an entry as it was encoded.
    pub(super) fn take(&mut self, entry: &[u128; ENTRY_WORDS]) -> io::Result<()> {
        let entry = Entry::decode(entry);
        if self.event.as_ref().is_some_and(|event| event.id != entry.event_id) {
            self.end_event()?;
        }
        let event = self.event.get_or_insert_with(|| Event { id: entry.event_id, ..Event::default() });
        match entry.known {
            Known::Row(row) => event.add_row(row),
            Known::DeadLetter => event.is_dead_letter = true,
            Known::Replay => event.replays += 1,
            Known::Copy(topic) => _ = event.copied_to.insert(topic),
            Known::Record(record) => event.add_record(&record, self.scope, &mut self.findings),
        }
        Ok(())
    }

    /// Finds the first records that follow a later event of their key, and returns all findings.
    ///
    /// If an earlier record of an event may be gone, its own place proves nothing against it. It still proves that events before
    /// it came too late, because its first record was here or earlier.
    pub(super) fn finish(mut self) -> io::Result<Findings> {
        self.end_event()?;
        let mut latest: Option<((u128, u128), u64)> = None;
        for first in self.order.sorted()? {
            let [place, key, at, event_id, is_certain] = first?;
            let (offset, id) = unpack(at);
            match latest {
                Some((of, latest_id)) if of == (place, key) && id < latest_id => {
                    if is_certain == 0 {
                        self.findings.unjudged.order += 1;
                    } else {
                        let (topic, partition) = unpack_place(place as u64);
                        let position = (topic, partition, Some(signed(offset)));
                        let (event_id, id) = (Uuid::from_u128(event_id), signed(id));
                        let finding = self.scope.finding(Kind::Reordered, Some(event_id), Some(id), position);
                        self.findings.add(finding);
                    }
                }
                _ => latest = Some(((place, key), id)),
            }
        }
        Ok(self.findings)
    }

    fn end_event(&mut self) -> io::Result<()> {
        let Some(event) = self.event.take() else { return Ok(()) };
        let Some((id, expected)) = event.first else { return Ok(()) };
        let Expected { topic, partition, fingerprint, created_us } = expected;
        self.findings.events += 1;
        let explanation = self.scope.explain_absence(topic, partition, created_us);
        if event.records < event.judged {
            let position = (topic, partition, None);
            match explanation {
                Some(count) => *count(&mut self.findings.unjudged) += 1,
                None => self.findings.add(self.scope.finding(Kind::Lost, Some(event.id), Some(id), position)),
            }
        }
        // A requeued event follows later ones of its key, and may also have been stored before it was rejected.
        if let Some(offset) = event.first_offset.filter(|_| !event.is_dead_letter) {
            let is_certain = event.has_all_records() && explanation.is_none();
            let (place, key) = (pack_place(topic, partition), u128::from_be_bytes(fingerprint.key));
            let at = pack(sortable(offset), sortable(id));
            self.order.push([place.into(), key, at, event.id.as_u128(), is_certain.into()])?;
        }
        Ok(())
    }
}

fn position(record: &Record) -> (u32, u32, Option<i64>) {
    (record.topic, record.partition, Some(record.offset))
}

/// Judges a record that belongs to no row.
pub(super) fn unknown(scope: &Scope, event_id: Option<Uuid>, record: &Record, findings: &mut Findings) {
    if !(scope.since_us..scope.unknown_until_us).contains(&record.at_us) {
        return;
    }
    if record.at_us < scope.reaped_until_us.saturating_add(CLOCKS_DIFFER_US) {
        findings.unjudged.reaped += 1;
    } else {
        findings.add(scope.finding(Kind::Unknown, event_id, None, position(record)));
    }
}

impl Event {
    fn add_row(&mut self, row: Row) {
        self.rows += 1;
        let Some(expected) = row.expected else {
            self.is_incomplete = true;
            return;
        };
        self.judged += 1;
        if self.first.is_none_or(|(id, _)| row.id < id) {
            self.first = Some((row.id, expected));
        }
        let record = |of: &Expected| (of.topic, of.partition, of.fingerprint);
        if self.variants.iter().any(|known| record(known) == record(&expected)) {
            return;
        }
        if self.variants.len() < VARIANTS_MAX {
            self.variants.push(expected);
        } else {
            self.is_incomplete = true;
        }
    }

    /// Whether the record is in a topic to which the event was copied, and has its bytes. If the command failed, not every
    /// copy was recorded, so any number is allowed.
    fn is_copy(&self, record: &Record) -> bool {
        let is_like = |expected: &Expected| expected.fingerprint == record.fingerprint;
        self.copied_to.contains(&record.topic)
            && self.variants.iter().all(|expected| expected.topic != record.topic)
            && (self.variants.is_empty() || self.variants.iter().any(is_like))
    }

    /// Whether there is a record for each time that the event was sent. If it was replayed and one is missing, the first one
    /// that is left may be that of the replay.
    fn has_all_records(&self) -> bool {
        self.replays == 0 || self.records >= self.rows + self.replays
    }

    fn add_record(&mut self, record: &Record, scope: &Scope, findings: &mut Findings) {
        if self.is_copy(record) {
            findings.unjudged.copies += 1;
            return;
        }
        self.records += 1;
        let Some((id, first)) = self.first else {
            match (self.rows, self.is_dead_letter) {
                (0, false) => unknown(scope, Some(self.id), record, findings),
                (0, true) => findings.unjudged.dead_letters += 1,
                _ => {}
            }
            return;
        };
        let finding = |kind| scope.finding(kind, Some(self.id), Some(id), position(record));
        let is_expected = self.variants.iter().any(|expected| expected.differing_parts(record).is_empty());
        if !is_expected && !self.is_incomplete {
            findings.add(Finding { parts: first.differing_parts(record), ..finding(Kind::Altered) });
        }
        if (first.topic, first.partition) == (record.topic, record.partition) {
            self.first_offset.get_or_insert(record.offset);
        }
        if self.records > self.rows + self.replays {
            findings.add(finding(Kind::Duplicate));
        } else if self.records > self.rows {
            findings.unjudged.replayed += 1;
        }
    }
}

impl Expected {
    fn differing_parts(&self, record: &Record) -> Vec<&'static str> {
        let (mine, its) = (&self.fingerprint, &record.fingerprint);
        [
            ("topic", self.topic != record.topic),
            ("partition", self.topic == record.topic && self.partition != record.partition),
            ("key", mine.key != its.key),
            ("value", mine.value != its.value),
            ("headers", mine.headers != its.headers),
        ]
        .into_iter()
        .filter_map(|(part, differs)| differs.then_some(part))
        .collect()
    }
}

/// How much the clocks of the relay, the brokers and PostgreSQL may differ, in microseconds.
pub(super) const CLOCKS_DIFFER_US: i64 = 60_000_000;

/// What is verified. Times are in microseconds since 1970.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    pub since_us: i64,
    /// The end of the range for unknown records: later ones may belong to rows that were committed after they were read.
    pub unknown_until_us: i64,
    /// Rows that were sent before this time may have been reaped.
    pub reaped_until_us: i64,
    /// The topics, to which entries refer by place.
    pub topics: Vec<Topic>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Topic {
    pub name: String,
    /// Whether Kafka compacts it; `None` if its settings are not known.
    pub compacts: Option<bool>,
    /// Empty if the topic does not exist.
    pub partitions: Vec<Partition>,
}

/// What a partition still has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Partition {
    /// Records up to this time may have expired; `None` if the partition has all records of the range.
    pub expired_until_us: Option<i64>,
    /// Offsets are missing, because of compaction or transactions.
    pub has_gaps: bool,
}

/// What is counted instead of a judgment.
type Count = fn(&mut Unjudged) -> &mut u64;

impl Scope {
    /// A finding at this topic, partition and offset.
    fn finding(
        &self,
        kind: Kind,
        event_id: Option<Uuid>,
        outbox_id: Option<i64>,
        (topic, partition, offset): (u32, u32, Option<i64>),
    ) -> Finding {
        let topic = self.topics.get(topic as usize).map_or_else(String::new, |topic| topic.name.clone());
        let event_id = event_id.map(|id| id.to_string());
        Finding { kind, event_id, outbox_id, topic, partition, offset, parts: Vec::new() }
    }

    /// Why a record for an event that was created at this time may be missing although the event was published.
    fn explain_absence(&self, topic: u32, partition: u32, created_us: i64) -> Option<Count> {
        let Some(topic) = self.topics.get(topic as usize).filter(|topic| !topic.partitions.is_empty()) else {
            return Some(|unjudged| &mut unjudged.topic_missing);
        };
        let Partition { expired_until_us, has_gaps } =
            topic.partitions.get(partition as usize).copied().unwrap_or_default();
        // Without a gap, nothing was compacted, whatever the settings are.
        match topic.compacts {
            Some(true) if has_gaps => return Some(|unjudged| &mut unjudged.compacted),
            // Compaction or transactions have removed offsets, and it is not known which.
            None if has_gaps => return Some(|unjudged| &mut unjudged.may_be_compacted),
            _ => {}
        }
        let has_expired =
            expired_until_us.is_some_and(|until| created_us <= until.saturating_add(CLOCKS_DIFFER_US));
        if has_expired { Some(|unjudged| &mut unjudged.expired) } else { None }
    }
}

#[cfg(test)]
mod tests;
