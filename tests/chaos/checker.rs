//! The checker: judges what Kafka and the dead letters hold by what the writers' ledger says. It knows nothing of how
//! a relay works.
//!
//! A committed event is in Kafka, or it was poison and is in the dead letters. A repeat of a record is a duplicate, the
//! first one of each event counts for the order.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use uuid::Uuid;

/// SHA-256 of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    /// Enough of it to tell two from each other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How many findings of a kind are described; the others are only counted.
const DESCRIBED: usize = 10;

/// A line of the ledger: an event that its writer committed.
#[derive(Clone, Debug)]
pub struct Committed {
    pub event_id: Uuid,
    pub topic: Rc<str>,
    pub key: Rc<str>,
    /// Counts the events of the key, in the order in which their writers committed.
    pub seq: i64,
    pub value: Digest,
    /// Kafka can never take this one.
    pub poison: bool,
}

/// A record as Kafka holds it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// When the broker appended it, in milliseconds since 1970.
    pub appended_ms: i64,
    /// None if the record names no event.
    pub event_id: Option<Uuid>,
    pub key: Option<String>,
    /// None for a tombstone.
    pub value: Option<Digest>,
}

/// A line of the table of dead letters.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub event_id: Uuid,
    /// Shown where something is wrong with it.
    #[expect(dead_code, reason = "read by Debug alone")]
    pub reason: String,
    pub value: Option<Digest>,
}

/// Findings of one kind: how many, and some of them in words.
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

/// What the checker has to say.
#[derive(Debug, Default)]
pub struct Verdict {
    pub events: usize,
    pub records: usize,
    /// Committed, and neither in Kafka nor in the dead letters.
    pub lost: Found,
    /// In Kafka or in the dead letters, and never committed.
    pub phantom: Found,
    /// With another topic, key or value than committed.
    pub altered: Found,
    /// First occurrences behind a later event of their key, or in another partition than it.
    pub reordered: Found,
    /// When each record beyond the first of its event was appended, in milliseconds since 1970.
    pub duplicates_ms: Vec<i64>,
    pub dead_lettered: usize,
    /// Dead letters that were no poison, or lie there twice.
    pub innocent: Found,
    /// Dead letters of which Kafka has a record. docs/guarantees.md allows this, so it breaks no guarantee.
    pub dead_and_stored: Found,
}

impl Verdict {
    /// Whether everything that was promised about events holds.
    pub fn is_sound(&self) -> bool {
        [&self.lost, &self.phantom, &self.altered, &self.reordered, &self.innocent]
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
            ("dead-lettered without guilt", &self.innocent),
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

/// Takes the ledger first, then the records, partition by partition in the order of their offsets, then the dead
/// letters.
pub struct Checker {
    ledger: HashMap<Uuid, Committed>,
    stored: HashSet<Uuid>,
    dead: HashSet<Uuid>,
    /// Of each (topic, key): the partition and the highest seq so far.
    latest: HashMap<(Rc<str>, Rc<str>), (i32, i64)>,
    verdict: Verdict,
}

impl Checker {
    /// # Panics
    ///
    /// If the ledger contradicts itself: then the writers are wrong, and nothing can be judged by it.
    pub fn new(ledger: impl IntoIterator<Item = Committed>) -> Self {
        let mut by_id = HashMap::new();
        let mut turns = HashSet::new();
        for event in ledger {
            let turn = (Rc::clone(&event.topic), Rc::clone(&event.key), event.seq);
            assert!(turns.insert(turn), "two writers had the same turn: {event:?}");
            let before = by_id.insert(event.event_id, event);
            assert!(before.is_none(), "the ledger names an event twice: {before:?}");
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
            verdict.reordered.add(|| format!("{record:?}, seq {} behind {seq}", event.seq));
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
            verdict.innocent.add(|| format!("{letter:?} of {event:?}"));
        }
        if self.stored.contains(&letter.event_id) {
            verdict.dead_and_stored.add(|| format!("{letter:?} of {event:?}"));
        }
    }

    /// What was committed and seen nowhere is lost.
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
