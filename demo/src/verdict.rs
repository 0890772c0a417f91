//! Compares committed events with received ones.

use outbox_bench::checker::{Checker, Recognized, Verdict};
use std::collections::HashMap;
use uuid::Uuid;

/// An event as its writer knows it.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) event_id: Uuid,
    pub(super) topic: &'static str,
    pub(super) key: String,
    /// The version of the aggregate after the change. Writers of one key take turns by incrementing it.
    pub(super) sequence: i64,
    /// The fingerprint of the payload.
    pub(super) payload: u64,
}

/// An event as the consumer received it.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    pub(super) event_id: Uuid,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) key: String,
    pub(super) payload: u64,
}

/// `arrived` contains the records of each partition in order. The order of different partitions does not matter.
pub(super) fn compare(written: &[Written], arrived: &[Arrived]) -> Verdict {
    let mut keys: HashMap<(&str, &str), u64> = HashMap::new();
    let mut expected: HashMap<Uuid, (u64, u64, &Written)> = HashMap::new();
    for (number, event) in (0..).zip(written) {
        let next = keys.len() as u64;
        let key = *keys.entry((event.topic, &event.key)).or_insert(next);
        expected.insert(event.event_id, (number, key, event));
    }
    let mut checker = Checker::new(expected.len() as u64, written.len() as u64);
    for arrival in arrived {
        checker.take(expected.get(&arrival.event_id).map(|&(number, key, event)| Recognized {
            event: number,
            event_id: 1, // the number stands for one event id
            key,
            place: event.sequence.unsigned_abs(),
            partition: arrival.partition,
            altered: (arrival.topic.as_str(), &arrival.key, arrival.payload)
                != (event.topic, &event.key, event.payload),
        }));
    }
    checker.verdict()
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

    /// The verdict after a change to a perfect delivery.
    fn after(change: impl FnOnce(&mut Vec<Arrived>)) -> Verdict {
        let written = written();
        let mut arrived = arrived(&written);
        change(&mut arrived);
        compare(&written, &arrived)
    }

    const GOOD: Verdict =
        Verdict { committed: 5, arrived: 5, lost: 0, duplicates: 0, reordered: 0, foreign: 0, altered: 0 };

    #[test]
    fn perfect_delivery_is_exact_however_partitions_are_mixed() {
        assert_eq!(after(|_| {}), GOOD);
        assert_eq!(after(|arrived| arrived.sort_by_key(|arrival| arrival.partition)), GOOD);
    }

    #[test]
    fn event_after_a_later_one_of_its_key_is_found() {
        assert_eq!(after(|arrived| arrived.swap(2, 3)), Verdict { reordered: 1, ..GOOD });
        assert_eq!(after(|arrived| arrived.swap(0, 1)), GOOD, "events of different keys");
    }

    #[test]
    fn repeated_event_does_not_hide_a_lost_one() {
        let verdict = after(|arrived| arrived[2] = arrived[0].clone());
        assert_eq!(verdict, Verdict { arrived: 4, lost: 1, duplicates: 1, ..GOOD });
    }

    #[test]
    fn event_of_a_rolled_back_transaction_is_foreign() {
        let verdict = after(|arrived| {
            let phantom = Arrived { event_id: Uuid::now_v7(), ..arrived[0].clone() };
            arrived.insert(1, phantom);
        });
        assert_eq!(verdict, Verdict { foreign: 1, ..GOOD });
        assert!(!verdict.is_exact());
    }

    #[test]
    fn changed_payload_or_key_is_altered() {
        let verdict = after(|arrived| {
            arrived[0].payload = 8;
            arrived[1].key = "c".to_owned();
        });
        assert_eq!(verdict, Verdict { altered: 2, ..GOOD });
    }
}
