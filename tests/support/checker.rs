//! The checker. It compares committed events with consumed records, and shares no code with the relay.

use std::collections::{HashMap, HashSet};
use std::fmt;
use uuid::Uuid;

use super::consumer::Record;

/// An event that a writer committed, from the writers' ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub event_id: Uuid,
    pub topic: String,
    pub key: String,
    /// The position of the event among the events of its key, in commit order.
    pub seq: i64,
    pub value: String,
}

/// The findings, and the number of duplicates.
#[derive(Debug, Default)]
pub struct Report {
    pub committed: usize,
    pub records: usize,
    /// Committed events without a record.
    pub lost: Vec<Committed>,
    /// Records of events that were never committed.
    pub phantom: Vec<Record>,
    /// Records whose topic, key or value differs from the committed one.
    pub altered: Vec<Record>,
    /// Records after the first of their event.
    pub duplicates: usize,
    /// Events whose first record follows a later event of their key, in the same or in another partition.
    pub reordered: Vec<Committed>,
}

impl Report {
    /// Compares events and records. The records of a partition must be in the order of their offsets.
    pub fn new(committed: &[Committed], records: &[Record]) -> Self {
        let by_id: HashMap<Uuid, &Committed> =
            committed.iter().map(|event| (event.event_id, event)).collect();
        assert_eq!(by_id.len(), committed.len(), "the ledger contains an event twice");
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

    /// Asserts that nothing is lost, invented, altered or out of order. The test itself judges the duplicates.
    pub fn assert_sound(&self) -> &Self {
        let sound = self.lost.is_empty()
            && self.phantom.is_empty()
            && self.altered.is_empty()
            && self.reordered.is_empty();
        assert!(sound, "{self}");
        self
    }

    /// Asserts that each event is stored exactly once and each key is in order.
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
        // Shortened, because values can be large.
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
    fn events_in_order_pass_whatever_lies_between_them() {
        let events = events();
        let [a1, a2, a3, b1] = &events[..] else { unreachable!() };
        Report::new(&events, &stored(&[a1, a2, a3, b1])).assert_exact();
        Report::new(&events, &stored(&[b1, a1, a2, a3])).assert_exact();
    }

    #[test]
    fn lost_event_is_found() {
        let events = events();
        let report = Report::new(&events, &stored(&[&events[0], &events[2], &events[3]]));
        assert_eq!(report.lost, [events[1].clone()]);
        assert!(report.reordered.is_empty());
    }

    #[test]
    fn uncommitted_event_is_found() {
        let events = events();
        let report = Report::new(&events[..3], &stored(&events.iter().collect::<Vec<_>>()));
        assert_eq!(report.phantom.len(), 1);
        let mut nameless = stored(&[&events[0]]);
        nameless[0].headers.clear();
        assert_eq!(Report::new(&events, &nameless).phantom.len(), 1);
    }

    #[test]
    fn duplicates_are_counted_and_do_not_affect_the_order() {
        let events = events();
        let [a1, a2, a3, b1] = &events[..] else { unreachable!() };
        let report = Report::new(&events, &stored(&[a1, a2, a1, a2, a3, b1, b1]));
        assert_eq!(report.assert_sound().duplicates, 3);
    }

    #[test]
    fn first_records_out_of_order_are_found() {
        let events = events();
        let [a1, a2, a3, b1] = &events[..] else { unreachable!() };
        let report = Report::new(&events, &stored(&[a1, a3, a2, a3, b1]));
        assert_eq!((report.reordered, report.duplicates), (vec![a2.clone()], 1));
    }

    #[test]
    fn key_that_changes_its_partition_is_found() {
        let events = events();
        let mut records = stored(&events.iter().collect::<Vec<_>>());
        records[1].partition = 7;
        assert_eq!(Report::new(&events, &records).reordered, [events[1].clone()]);
    }

    #[test]
    fn changed_topic_key_or_value_is_found() {
        let events = events();
        let mut records = stored(&events.iter().collect::<Vec<_>>());
        records[0].value = None;
        records[1].key = Some(b"b".to_vec());
        records[2].topic = "u".to_owned();
        assert_eq!(Report::new(&events, &records).altered.len(), 3);
    }
}
