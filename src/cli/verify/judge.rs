//! Compares the rows of each event with its records, and the order of the first records of each key with that of the rows.

use super::entries::{ENTRY_BYTES, Entry, Expected, Known, Reader, Row, Sorter, Writer};
use super::report::{Finding, Findings, Kind};
use kafka::operate::reader::Record;
use std::io;
use std::path::Path;
use uuid::Uuid;

/// The maximum number of different records that the rows of one event id may have. Rows of one event normally have the same.
const VARIANTS_MAX: usize = 8;

/// Judges entries that are sorted by event.
pub(super) struct Judge<'a> {
    scope: &'a Scope,
    findings: Findings,
    order: Order,
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
    /// Whether the records of all its rows are known.
    is_complete: bool,
    is_dead_letter: bool,
    replays: u64,
    /// The topics to which it was copied.
    copied_to: Vec<u32>,
    /// Without copies.
    records: u64,
    /// The first offset in the expected partition.
    first_offset: Option<i64>,
}

impl<'a> Judge<'a> {
    /// Continues with these findings. The order is sorted in temporary files in this folder.
    pub(super) fn new(scope: &'a Scope, findings: Findings, folder: &Path) -> Judge<'a> {
        Judge { scope, findings, order: Order::new(folder), event: None }
    }

    /// Judges an entry as it was encoded.
    pub(super) fn take(&mut self, entry: &[u8; ENTRY_BYTES]) -> io::Result<()> {
        let entry = Entry::decode(entry);
        if self.event.as_ref().is_none_or(|event| event.id != entry.event_id) {
            self.end_event()?;
            self.event = Some(Event::new(entry.event_id));
        }
        let Some(event) = &mut self.event else { unreachable!("it was set above") };
        match entry.known {
            Known::Row(row) => event.add_row(row),
            Known::DeadLetter => event.is_dead_letter = true,
            Known::Replay => event.replays += 1,
            Known::Copy(topic) => event.add_copy(topic),
            Known::Record(record) => event.add_record(&record, self.scope, &mut self.findings),
        }
        Ok(())
    }

    /// Judges the order, and returns all findings.
    pub(super) fn finish(mut self) -> io::Result<Findings> {
        self.end_event()?;
        self.order.judge(&mut self.findings)?;
        Ok(self.findings)
    }

    fn end_event(&mut self) -> io::Result<()> {
        let Some(event) = self.event.take() else { return Ok(()) };
        let Some((id, expected)) = event.first else { return Ok(()) };
        self.findings.events += 1;
        if event.records < event.judged {
            self.absent(&event, id, &expected);
        }
        // A requeued event follows later ones of its key, and may also have been stored before it was rejected.
        if let Some(offset) = event.first_offset.filter(|_| !event.is_dead_letter) {
            let Expected { topic, partition, fingerprint, created_us } = expected;
            let has_expired = self.scope.explain_absence(topic, partition, created_us).is_some();
            let is_certain = event.has_all_records() && !has_expired;
            let (key, event_id) = (fingerprint.key, event.id);
            self.order.push(&First { topic, partition, key, offset, id, event_id, is_certain })?;
        }
        Ok(())
    }

    fn absent(&mut self, event: &Event, id: i64, expected: &Expected) {
        let Expected { topic, partition, created_us, .. } = *expected;
        let unjudged = &mut self.findings.unjudged;
        match self.scope.explain_absence(topic, partition, created_us) {
            Some(Absence::TopicMissing) => unjudged.topic_missing += 1,
            Some(Absence::Compacted) => unjudged.compacted += 1,
            Some(Absence::MayBeCompacted) => unjudged.may_be_compacted += 1,
            Some(Absence::Expired) => unjudged.expired += 1,
            None => self.findings.add(Finding {
                kind: Kind::Lost,
                event_id: Some(event.id),
                outbox_id: Some(id),
                topic,
                partition,
                offset: None,
                parts: Vec::new(),
            }),
        }
    }
}

/// Judges a record that belongs to no row.
pub(super) fn unknown(scope: &Scope, event_id: Option<Uuid>, record: &Record, findings: &mut Findings) {
    match scope.judges_unknown(record.at_us) {
        Unknown::OutOfRange => {}
        Unknown::MayBeReaped => findings.unjudged.reaped += 1,
        Unknown::Judged => findings.add(finding(Kind::Unknown, event_id, None, record)),
    }
}

fn finding(kind: Kind, event_id: Option<Uuid>, outbox_id: Option<i64>, record: &Record) -> Finding {
    let Record { topic, partition, offset, .. } = *record;
    Finding { kind, event_id, outbox_id, topic, partition, offset: Some(offset), parts: Vec::new() }
}

impl Event {
    fn new(id: Uuid) -> Event {
        Event { id, is_complete: true, ..Event::default() }
    }

    fn add_row(&mut self, row: Row) {
        self.rows += 1;
        let Some(expected) = row.expected else {
            self.is_complete = false;
            return;
        };
        self.judged += 1;
        if self.first.is_none_or(|(id, _)| row.id < id) {
            self.first = Some((row.id, expected));
        }
        if self.variants.iter().any(|known| known.has_record_of(&expected)) {
            return;
        }
        if self.variants.len() < VARIANTS_MAX {
            self.variants.push(expected);
        } else {
            self.is_complete = false;
        }
    }

    fn add_copy(&mut self, topic: u32) {
        if !self.copied_to.contains(&topic) {
            self.copied_to.push(topic);
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
        let is_expected = self.variants.iter().any(|expected| expected.is(record));
        if !is_expected && self.is_complete {
            let parts = first.differing_parts(record);
            findings.add(Finding { parts, ..finding(Kind::Altered, Some(self.id), Some(id), record) });
        }
        if (first.topic, first.partition) == (record.topic, record.partition) {
            self.first_offset.get_or_insert(record.offset);
        }
        if self.records > self.rows + self.replays {
            findings.add(finding(Kind::Duplicate, Some(self.id), Some(id), record));
        } else if self.records > self.rows {
            findings.unjudged.replayed += 1;
        }
    }
}

impl Expected {
    fn has_record_of(&self, other: &Expected) -> bool {
        (self.topic, self.partition, self.fingerprint) == (other.topic, other.partition, other.fingerprint)
    }

    fn is(&self, record: &Record) -> bool {
        self.differing_parts(record).is_empty()
    }

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

const PLACE_BYTES: usize = 57;

/// The first record of an event that the topic still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct First {
    pub topic: u32,
    pub partition: u32,
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

/// Why the absence of a record proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    TopicMissing,
    Compacted,
    /// Compaction or transactions have removed offsets, and it is not known which.
    MayBeCompacted,
    Expired,
}

impl Scope {
    /// Why a record for an event that was created at this time may be missing although the event was published.
    pub(super) fn explain_absence(&self, topic: u32, partition: u32, created_us: i64) -> Option<Absence> {
        let Some(topic) = self.topics.get(topic as usize).filter(|topic| !topic.partitions.is_empty()) else {
            return Some(Absence::TopicMissing);
        };
        let Partition { expired_until_us, has_gaps } =
            topic.partitions.get(partition as usize).copied().unwrap_or_default();
        // Without a gap, nothing was compacted, whatever the settings are.
        match topic.compacts {
            Some(true) if has_gaps => return Some(Absence::Compacted),
            None if has_gaps => return Some(Absence::MayBeCompacted),
            _ => {}
        }
        let has_expired = |until: i64| created_us <= until.saturating_add(CLOCKS_DIFFER_US);
        expired_until_us.is_some_and(has_expired).then_some(Absence::Expired)
    }

    /// Whether a record of this time without a row is judged.
    pub(super) fn judges_unknown(&self, at_us: i64) -> Unknown {
        if at_us < self.since_us || at_us >= self.unknown_until_us {
            return Unknown::OutOfRange;
        }
        if at_us < self.reaped_until_us.saturating_add(CLOCKS_DIFFER_US) {
            return Unknown::MayBeReaped;
        }
        Unknown::Judged
    }
}

/// What is known about a record without a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    Judged,
    MayBeReaped,
    OutOfRange,
}

#[cfg(test)]
mod tests;
