//! The checker: compares what was committed with what a consumer read. It shares no code with the relay.

use std::collections::{HashMap, HashSet};
use std::fmt;
use uuid::Uuid;

use super::consumer::Record;

/// An event that a writer committed, from the writers' own ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub event_id: Uuid,
    pub topic: String,
    pub key: String,
    /// Counts the events of the key, in the order in which their writers committed.
    pub seq: i64,
    pub value: String,
}

/// What is wrong, and how many duplicates there are.
#[derive(Debug, Default)]
pub struct Report {
    pub committed: usize,
    pub records: usize,
    /// Committed, and not there.
    pub lost: Vec<Committed>,
    /// There, and never committed.
    pub phantom: Vec<Record>,
    /// There under another topic or key, or with another value, than committed.
    pub altered: Vec<Record>,
    /// Records beyond the first of an event.
    pub duplicates: usize,
    /// First occurrences that come behind a later event of their key, in the same partition or in another one.
    pub reordered: Vec<Committed>,
}

impl Report {
    /// Compares. The records of a partition must be in the order of their offsets.
    pub fn new(committed: &[Committed], records: &[Record]) -> Self {
        let by_id: HashMap<Uuid, &Committed> =
            committed.iter().map(|event| (event.event_id, event)).collect();
        assert_eq!(by_id.len(), committed.len(), "the ledger names an event twice");
        let mut report = Self { committed: committed.len(), records: records.len(), ..Self::default() };
        let mut seen: HashSet<Uuid> = HashSet::new();
        let mut latest: HashMap<(&str, &str), (i32, i64)> = HashMap::new();
        for record in records {
            let Some(event) = record.event_id().and_then(|id| by_id.get(&id)) else {
                report.phantom.push(record.clone());
                continue;
            };
            let same = record.topic == event.topic
                && record.key.as_deref() == Some(event.key.as_bytes())
                && record.value.as_deref() == Some(event.value.as_bytes());
            if !same {
                report.altered.push(record.clone());
            }
            if !seen.insert(event.event_id) {
                report.duplicates += 1;
                continue;
            }
            let (partition, seq) =
                latest.entry((&event.topic, &event.key)).or_insert((record.partition, event.seq));
            if event.seq < *seq || record.partition != *partition {
                report.reordered.push((*event).clone());
            }
            *seq = event.seq.max(*seq);
        }
        report.lost = committed.iter().filter(|event| !seen.contains(&event.event_id)).cloned().collect();
        report
    }

    /// Nothing lost, invented, altered or out of order. Duplicates are for the test to judge.
    pub fn assert_sound(&self) -> &Self {
        let sound = self.lost.is_empty()
            && self.phantom.is_empty()
            && self.altered.is_empty()
            && self.reordered.is_empty();
        assert!(sound, "{self}");
        self
    }

    /// Each event exactly once, each key in order.
    pub fn assert_exact(&self) -> &Self {
        self.assert_sound();
        assert_eq!(self.duplicates, 0, "{self}");
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "committed {}, records {}: lost {}, phantom {}, altered {}, reordered {}, duplicates {}",
            self.committed,
            self.records,
            self.lost.len(),
            self.phantom.len(),
            self.altered.len(),
            self.reordered.len(),
            self.duplicates
        )?;
        let some = 5;
        // Values can be large.
        let short = |line: String| line.chars().take(400).collect::<String>();
        self.lost
            .iter()
            .take(some)
            .try_for_each(|event| writeln!(f, "  lost: {}", short(format!("{event:?}"))))?;
        self.phantom
            .iter()
            .take(some)
            .try_for_each(|record| writeln!(f, "  phantom: {}", short(format!("{record:?}"))))?;
        self.altered
            .iter()
            .take(some)
            .try_for_each(|record| writeln!(f, "  altered: {}", short(format!("{record:?}"))))?;
        self.reordered
            .iter()
            .take(some)
            .try_for_each(|event| writeln!(f, "  reordered: {}", short(format!("{event:?}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<Committed> {
        let event = |key: &str, seq| Committed {
            event_id: Uuid::from_u64_pair(key.as_bytes()[0].into(), seq as u64),
            topic: "t".to_owned(),
            key: key.to_owned(),
            seq,
            value: seq.to_string(),
        };
        vec![event("a", 1), event("a", 2), event("a", 3), event("b", 1)]
    }

    fn stored(events: &[&Committed]) -> Vec<Record> {
        let record = |(offset, event): (usize, &&Committed)| Record {
            topic: event.topic.clone(),
            partition: 0,
            offset: offset as i64,
            timestamp_ms: None,
            key: Some(event.key.clone().into_bytes()),
            value: Some(event.value.clone().into_bytes()),
            headers: vec![("event_id".to_owned(), Some(event.event_id.to_string().into_bytes()))],
        };
        events.iter().enumerate().map(record).collect()
    }

    #[test]
    fn the_checker_passes_events_in_order_whatever_lies_between_them() {
        let events = events();
        let [a1, a2, a3, b1] = &events[..] else { unreachable!() };
        Report::new(&events, &stored(&[a1, a2, a3, b1])).assert_exact();
        Report::new(&events, &stored(&[b1, a1, a2, a3])).assert_exact();
    }

    #[test]
    fn the_checker_sees_a_lost_event() {
        let events = events();
        let report = Report::new(&events, &stored(&[&events[0], &events[2], &events[3]]));
        assert_eq!(report.lost, [events[1].clone()]);
        assert!(report.reordered.is_empty());
    }

    #[test]
    fn the_checker_sees_an_event_that_nobody_committed() {
        let events = events();
        let report = Report::new(&events[..3], &stored(&events.iter().collect::<Vec<_>>()));
        assert_eq!(report.phantom.len(), 1);
        let mut nameless = stored(&[&events[0]]);
        nameless[0].headers.clear();
        assert_eq!(Report::new(&events, &nameless).phantom.len(), 1);
    }

    #[test]
    fn the_checker_counts_duplicates_and_does_not_take_them_for_a_new_order() {
        let events = events();
        let [a1, a2, a3, b1] = &events[..] else { unreachable!() };
        let report = Report::new(&events, &stored(&[a1, a2, a1, a2, a3, b1, b1]));
        assert_eq!(report.assert_sound().duplicates, 3);
    }

    #[test]
    fn the_checker_sees_first_occurrences_out_of_order() {
        let events = events();
        let [a1, a2, a3, b1] = &events[..] else { unreachable!() };
        let report = Report::new(&events, &stored(&[a1, a3, a2, a3, b1]));
        assert_eq!((report.reordered, report.duplicates), (vec![a2.clone()], 1));
    }

    #[test]
    fn the_checker_sees_a_key_that_changes_its_partition() {
        let events = events();
        let mut records = stored(&events.iter().collect::<Vec<_>>());
        records[1].partition = 7;
        assert_eq!(Report::new(&events, &records).reordered, [events[1].clone()]);
    }

    #[test]
    fn the_checker_sees_another_topic_key_or_value() {
        let events = events();
        let mut records = stored(&events.iter().collect::<Vec<_>>());
        records[0].value = None;
        records[1].key = Some(b"b".to_vec());
        records[2].topic = "u".to_owned();
        assert_eq!(Report::new(&events, &records).altered.len(), 3);
    }
}
