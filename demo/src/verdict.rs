//! Compares what was committed with what arrived.

use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// An event as its writer knows it.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) event_id: Uuid,
    pub(super) topic: &'static str,
    pub(super) key: String,
    /// The version of the aggregate that the event announces: writers of one key took turns by it.
    pub(super) sequence: i64,
    /// The fingerprint of the payload.
    pub(super) payload: u64,
}

/// An event as the consumer found it, in the order of its partition.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    pub(super) event_id: Uuid,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) key: String,
    pub(super) payload: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Committed events.
    pub(super) written: usize,
    /// Of those, how many arrived.
    pub(super) received: usize,
    /// Of those, how many did not.
    pub(super) lost: usize,
    /// Arrivals of an event that had arrived before.
    pub(super) duplicates: usize,
    /// Events that arrived after a later one of their key, or in another partition than the rest of it.
    pub(super) reordered: usize,
    /// Arrivals of what was never committed.
    pub(super) phantoms: usize,
    /// Events with another topic, key or payload than their writer gave them.
    pub(super) altered: usize,
}

impl Verdict {
    /// Everything arrived, once, in order, as it was written, and nothing else did.
    pub(super) fn is_good(&self) -> bool {
        let Verdict { written, received, lost, duplicates, reordered, phantoms, altered } = *self;
        written == received && lost + duplicates + reordered + phantoms + altered == 0
    }
}

/// `arrived` must have the records of each partition in their order; how partitions are mixed does not matter.
pub(super) fn compare(written: &[Written], arrived: &[Arrived]) -> Verdict {
    let expected: HashMap<Uuid, &Written> = written.iter().map(|event| (event.event_id, event)).collect();
    let mut verdict = Verdict { written: expected.len(), ..Verdict::default() };
    let mut seen = HashSet::new();
    // The partition of each key, and its highest version so far.
    let mut keys: HashMap<(&str, &str), (i32, i64)> = HashMap::new();
    for arrival in arrived {
        let Some(event) = expected.get(&arrival.event_id) else {
            verdict.phantoms += 1;
            continue;
        };
        if !seen.insert(arrival.event_id) {
            verdict.duplicates += 1;
            continue;
        }
        if (arrival.topic.as_str(), &arrival.key, arrival.payload) != (event.topic, &event.key, event.payload)
        {
            verdict.altered += 1;
        }
        let (partition, highest) =
            keys.entry((event.topic, &event.key)).or_insert((arrival.partition, event.sequence));
        if arrival.partition != *partition || event.sequence < *highest {
            verdict.reordered += 1;
        }
        *highest = event.sequence.max(*highest);
    }
    verdict.received = seen.len();
    verdict.lost = verdict.written - verdict.received;
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<Written> {
        let event = |key: &str, sequence| Written {
            event_id: Uuid::now_v7(),
            topic: "events.order",
            key: key.to_owned(),
            sequence,
            payload: 7,
        };
        vec![event("a", 1), event("b", 1), event("a", 2), event("a", 3), event("b", 2)]
    }

    fn arrived(written: &[Written]) -> Vec<Arrived> {
        let arrival = |event: &Written| Arrived {
            event_id: event.event_id,
            topic: event.topic.to_owned(),
            partition: i32::from(event.key == "b"),
            key: event.key.clone(),
            payload: event.payload,
        };
        written.iter().map(arrival).collect()
    }

    /// The verdict after something was done to a perfect delivery.
    fn after(change: impl FnOnce(&mut Vec<Arrived>)) -> Verdict {
        let written = written();
        let mut arrived = arrived(&written);
        change(&mut arrived);
        compare(&written, &arrived)
    }

    const GOOD: Verdict =
        Verdict { written: 5, received: 5, lost: 0, duplicates: 0, reordered: 0, phantoms: 0, altered: 0 };

    #[test]
    fn a_perfect_delivery_is_good_however_partitions_are_mixed() {
        assert!(GOOD.is_good());
        assert_eq!(after(|_| {}), GOOD);
        assert_eq!(after(|arrived| arrived.sort_by_key(|arrival| arrival.partition)), GOOD);
    }

    #[test]
    fn a_lost_event_is_seen() {
        let verdict = after(|arrived| drop(arrived.remove(2)));
        assert_eq!(verdict, Verdict { received: 4, lost: 1, ..GOOD });
        assert!(!verdict.is_good());
        let verdict = after(Vec::clear);
        assert_eq!(verdict, Verdict { received: 0, lost: 5, ..GOOD });
    }

    #[test]
    fn a_repeated_event_is_seen_and_is_not_taken_for_a_reordered_one() {
        let verdict = after(|arrived| arrived.push(arrived[0].clone()));
        assert_eq!(verdict, Verdict { duplicates: 1, ..GOOD });
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_repeated_event_does_not_hide_a_lost_one() {
        let verdict = after(|arrived| arrived[2] = arrived[0].clone());
        assert_eq!(verdict, Verdict { received: 4, lost: 1, duplicates: 1, ..GOOD });
    }

    #[test]
    fn an_event_behind_a_later_one_of_its_key_is_seen() {
        let verdict = after(|arrived| arrived.swap(2, 3));
        assert_eq!(verdict, Verdict { reordered: 1, ..GOOD });
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_key_in_two_partitions_has_no_order() {
        let verdict = after(|arrived| arrived[3].partition = 5);
        assert_eq!(verdict, Verdict { reordered: 1, ..GOOD });
    }

    #[test]
    fn an_event_of_a_transaction_that_was_rolled_back_is_seen() {
        let verdict = after(|arrived| {
            let phantom = Arrived { event_id: Uuid::now_v7(), ..arrived[0].clone() };
            arrived.insert(1, phantom);
        });
        assert_eq!(verdict, Verdict { phantoms: 1, ..GOOD });
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_changed_payload_or_key_is_seen() {
        let verdict = after(|arrived| {
            arrived[0].payload = 8;
            arrived[1].key = "c".to_owned();
        });
        assert_eq!(verdict, Verdict { altered: 2, ..GOOD });
        assert!(!verdict.is_good());
    }
}
