//! The checker. It compares Kafka and the dead letters with the writers' ledger, and does not know how a relay works.
//!
//! A committed event must be in Kafka, or in the dead letters if it is poison. A repeated record is a duplicate. The
//! order is checked for the first record of each event.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use uuid::Uuid;

/// SHA-256 of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    /// Prints enough to distinguish two values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The number of findings of each kind that are described. The others are only counted.
const DESCRIBED: usize = 10;

/// A line of the ledger: an event that its writer committed.
#[derive(Clone, Debug)]
pub struct Committed {
    pub event_id: Uuid,
    pub topic: Rc<str>,
    pub key: Rc<str>,
    /// The position of the event among the events of its key, in commit order.
    pub seq: i64,
    pub value: Digest,
    /// Kafka can never accept this event.
    pub poison: bool,
}

/// A record in Kafka.
#[derive(Clone, Debug)]
pub struct Stored {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// The time at which the broker appended it, in milliseconds since 1970.
    pub appended_ms: i64,
    /// None if the record has no event id.
    pub event_id: Option<Uuid>,
    pub key: Option<String>,
    /// None for a tombstone.
    pub value: Option<Digest>,
}

/// A row of the dead-letter table.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub event_id: Uuid,
    /// Printed in findings.
    #[expect(dead_code, reason = "read by Debug alone")]
    pub reason: String,
    pub value: Option<Digest>,
}

/// The findings of one kind: the number, and descriptions of some.
#[derive(Debug, Default)]
pub struct Found {
    pub count: usize,
    pub described: Vec<String>,
}

impl Found {
    fn add(&mut self, what: impl FnOnce() -> String) {
        self.count += 1;
        if self.described.len() < DESCRIBED {
            self.described.push(what());
        }
    }
}

/// The verdict of the checker.
#[derive(Debug, Default)]
pub struct Verdict {
    pub events: usize,
    pub records: usize,
    /// Events that were committed but are neither in Kafka nor in the dead letters.
    pub lost: Found,
    /// Events in Kafka or in the dead letters that were never committed.
    pub phantom: Found,
    /// Events whose topic, key or value differs from the committed one.
    pub altered: Found,
    /// Events whose first record follows a later event of their key, or is in another partition.
    pub reordered: Found,
    /// The append time of each record after the first of its event, in milliseconds since 1970.
    pub duplicates_ms: Vec<i64>,
    pub dead_lettered: usize,
    /// Dead letters that are not poison, or that occur twice.
    pub wrongly_dead: Found,
    /// Dead letters whose event is also in Kafka. docs/guarantees.md allows this, so it breaks no guarantee.
    pub dead_and_stored: Found,
}

impl Verdict {
    /// Whether no guarantee about events is broken.
    pub fn is_sound(&self) -> bool {
        [&self.lost, &self.phantom, &self.altered, &self.reordered, &self.wrongly_dead]
            .iter()
            .all(|found| found.count == 0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = [
            ("lost", &self.lost),
            ("phantom", &self.phantom),
            ("altered", &self.altered),
            ("reordered", &self.reordered),
            ("dead-lettered wrongly", &self.wrongly_dead),
            ("dead-lettered and stored", &self.dead_and_stored),
        ];
        writeln!(f, "  {:<28} {:>9}", "events committed", self.events)?;
        writeln!(f, "  {:<28} {:>9}", "records in Kafka", self.records)?;
        writeln!(f, "  {:<28} {:>9}", "dead-lettered", self.dead_lettered)?;
        writeln!(f, "  {:<28} {:>9}", "duplicates", self.duplicates_ms.len())?;
        for (name, found) in found {
            writeln!(f, "  {name:<28} {:>9}", found.count)?;
            for what in &found.described {
                writeln!(f, "      {what}")?;
            }
        }
        Ok(())
    }
}

/// Reads the ledger first, then the records of each partition in the order of their offsets, then the dead letters.
pub struct Checker {
    ledger: HashMap<Uuid, Committed>,
    stored: HashSet<Uuid>,
    dead: HashSet<Uuid>,
    /// The partition and the highest seq so far of each (topic, key).
    latest: HashMap<(Rc<str>, Rc<str>), (i32, i64)>,
    verdict: Verdict,
}

impl Checker {
    /// # Panics
    ///
    /// If the ledger contradicts itself. In that case the writers are wrong, and nothing can be judged.
    pub fn new(ledger: impl IntoIterator<Item = Committed>) -> Self {
        let mut by_id = HashMap::new();
        let mut turns = HashSet::new();
        for event in ledger {
            let turn = (Rc::clone(&event.topic), Rc::clone(&event.key), event.seq);
            assert!(turns.insert(turn), "two writers took the same turn: {event:?}");
            let before = by_id.insert(event.event_id, event);
            assert!(before.is_none(), "the ledger contains an event twice: {before:?}");
        }
        let verdict = Verdict { events: by_id.len(), ..Verdict::default() };
        Self { ledger: by_id, stored: HashSet::new(), dead: HashSet::new(), latest: HashMap::new(), verdict }
    }

    pub fn record(&mut self, record: &Stored) {
        let verdict = &mut self.verdict;
        verdict.records += 1;
        let Some(event) = record.event_id.and_then(|id| self.ledger.get(&id)) else {
            verdict.phantom.add(|| format!("{record:?}"));
            return;
        };
        let same = *record.topic == *event.topic
            && record.key.as_deref() == Some(&*event.key)
            && record.value == Some(event.value);
        if !same {
            verdict.altered.add(|| format!("{record:?}, committed as {event:?}"));
        }
        if !self.stored.insert(event.event_id) {
            verdict.duplicates_ms.push(record.appended_ms);
            return;
        }
        let key = (Rc::clone(&event.topic), Rc::clone(&event.key));
        let (partition, seq) = self.latest.entry(key).or_insert((record.partition, event.seq));
        if event.seq < *seq || record.partition != *partition {
            verdict.reordered.add(|| format!("{record:?}, seq {} after {seq}", event.seq));
        }
        *seq = event.seq.max(*seq);
    }

    pub fn dead_letter(&mut self, letter: &DeadLetter) {
        let verdict = &mut self.verdict;
        verdict.dead_lettered += 1;
        let Some(event) = self.ledger.get(&letter.event_id) else {
            verdict.phantom.add(|| format!("{letter:?}"));
            return;
        };
        if letter.value != Some(event.value) {
            verdict.altered.add(|| format!("{letter:?}, committed as {event:?}"));
        }
        if !self.dead.insert(letter.event_id) || !event.poison {
            verdict.wrongly_dead.add(|| format!("{letter:?} of {event:?}"));
        }
        if self.stored.contains(&letter.event_id) {
            verdict.dead_and_stored.add(|| format!("{letter:?} of {event:?}"));
        }
    }

    /// Counts committed events that were not found anywhere as lost.
    pub fn finish(mut self) -> Verdict {
        for (id, event) in &self.ledger {
            if !self.stored.contains(id) && !self.dead.contains(id) {
                self.verdict.lost.add(|| format!("{event:?}"));
            }
        }
        self.verdict
    }
}

#[cfg(test)]
mod tests;
