//! Compares the rows of each event with its records.

use std::io;
use std::path::Path;
use uuid::Uuid;

use super::entry::{ENTRY_BYTES, Entry, Expected, Known, Row};
use super::findings::{Finding, Findings, Kind};
use super::order::{First, Order};
use super::scope::{Absence, Scope, Unknown};
use kafka::operate::reader::Record;

/// The maximum number of different records that the rows of one event id may have. Rows of one event normally have the same.
const VARIANTS_MAX: usize = 8;

/// Judges entries that are sorted by event.
pub(crate) struct Judge<'a> {
    scope: &'a Scope,
    findings: Findings,
    order: Order,
    event: Option<Event>,
}

/// What the entries of one event have shown so far.
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
    pub(crate) fn new(scope: &'a Scope, findings: Findings, folder: &Path) -> Judge<'a> {
        Judge { scope, findings, order: Order::new(folder), event: None }
    }

    /// Judges an entry as it was encoded.
    pub(crate) fn take(&mut self, entry: &[u8; ENTRY_BYTES]) -> io::Result<()> {
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
    pub(crate) fn finish(mut self) -> io::Result<Findings> {
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
pub(crate) fn unknown(scope: &Scope, event_id: Option<Uuid>, record: &Record, findings: &mut Findings) {
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
        Event {
            id,
            rows: 0,
            judged: 0,
            first: None,
            variants: Vec::new(),
            is_complete: true,
            is_dead_letter: false,
            replays: 0,
            copied_to: Vec::new(),
            records: 0,
            first_offset: None,
        }
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

#[cfg(test)]
mod tests;
