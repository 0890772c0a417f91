//! Compares records with what was committed: no event lost, none twice, each key in order.
//!
//! The checker knows events and keys by number only. Its callers know what was committed and recognize the records:
//! `verify.rs` for measurements, the ledger for the demo.

use serde::Serialize;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Events that were committed.
    pub committed: u64,
    /// Of those, how many arrived.
    pub arrived: u64,
    /// Of those, how many did not.
    pub lost: u64,
    /// Arrivals of an event that had arrived before, with the same event id.
    pub duplicates: u64,
    /// Events that arrived for the first time after a later one of their key, or in a different partition from the rest of it.
    pub reordered: u64,
    /// Arrivals that are none of the committed events.
    pub foreign: u64,
    /// Events that arrived with content other than what was committed. Measurements count these as foreign and lost.
    #[serde(skip)]
    pub altered: u64,
}

/// A record that is one of the committed events.
#[derive(Clone, Copy, Debug)]
pub struct Recognized {
    /// The number of the event.
    pub event: u64,
    /// A number that distinguishes its event id from others; never 0.
    pub event_id: u64,
    /// The number of its key.
    pub key: u64,
    /// Its place in the order of its key.
    pub place: u64,
    /// The partition it arrived in.
    pub partition: i32,
    /// Whether its content is not what was committed.
    pub altered: bool,
}

/// Checks records one by one.
pub struct Checker {
    /// The event id with which each event arrived. 0 until it arrives.
    event_ids: Vec<u64>,
    /// The partition of each key, and the place after its last event.
    keys: Vec<(i32, u64)>,
    verdict: Verdict,
}

impl Verdict {
    /// Whether everything arrived, unchanged and in order, and nothing else arrived. Duplicates are allowed, because a
    /// fault may have caused them.
    pub fn is_good(&self) -> bool {
        self.lost + self.reordered + self.foreign + self.altered == 0
    }

    /// The same, without duplicates.
    pub fn is_exact(&self) -> bool {
        self.is_good() && self.duplicates == 0
    }
}

impl Checker {
    /// A checker for this many committed events, whose numbers are below `numbers`.
    pub fn new(committed: u64, numbers: u64) -> Checker {
        Checker {
            event_ids: vec![0; numbers as usize],
            keys: Vec::new(),
            verdict: Verdict { committed, ..Verdict::default() },
        }
    }

    /// Checks the next record of its partition. `None` is a record that is not one of the committed events.
    pub fn take(&mut self, record: Option<Recognized>) {
        let Some(record) = record else {
            self.verdict.foreign += 1;
            return;
        };
        match &mut self.event_ids[record.event as usize] {
            known if *known == record.event_id => return self.verdict.duplicates += 1,
            known if *known != 0 => return self.verdict.foreign += 1,
            known => *known = record.event_id,
        }
        self.verdict.arrived += 1;
        self.verdict.altered += u64::from(record.altered);
        if self.keys.len() <= record.key as usize {
            self.keys.resize(record.key as usize + 1, (record.partition, 0));
        }
        let (partition, next) = &mut self.keys[record.key as usize];
        if *next == 0 {
            *partition = record.partition;
        }
        if *partition != record.partition || record.place < *next {
            self.verdict.reordered += 1;
        }
        *next = (*next).max(record.place + 1);
    }

    /// The result after all records have been checked.
    pub fn verdict(&self) -> Verdict {
        Verdict { lost: self.verdict.committed - self.verdict.arrived, ..self.verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events 0 to 3. Events 0, 1 and 3 have key 2.
    fn delivery() -> Vec<Recognized> {
        [2, 2, 1, 2].into_iter().zip(0..).map(|(key, number)| event(number, key)).collect()
    }

    fn event(number: u64, key: u64) -> Recognized {
        Recognized { event: number, event_id: number + 1, key, place: number, partition: 0, altered: false }
    }

    /// The verdict after a change to a perfect delivery.
    fn after(change: impl FnOnce(&mut Vec<Recognized>)) -> Verdict {
        let mut records = delivery();
        change(&mut records);
        let mut checker = Checker::new(4, 4);
        for record in records {
            checker.take(Some(record));
        }
        checker.verdict()
    }

    const GOOD: Verdict =
        Verdict { committed: 4, arrived: 4, lost: 0, duplicates: 0, reordered: 0, foreign: 0, altered: 0 };

    #[test]
    fn perfect_delivery_is_exact_however_keys_are_mixed() {
        assert_eq!(after(|_| {}), GOOD);
        assert_eq!(after(|records| records.swap(1, 2)), GOOD, "events of different keys");
        assert!(GOOD.is_good() && GOOD.is_exact());
    }

    #[test]
    fn lost_event_is_found() {
        let verdict = after(|records| _ = records.remove(1));
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, ..GOOD });
        assert!(!verdict.is_good());
        assert_eq!(after(Vec::clear), Verdict { arrived: 0, lost: 4, ..GOOD });
    }

    #[test]
    fn duplicate_is_counted_and_does_not_affect_the_order() {
        let verdict = after(|records| records.push(event(0, 2)));
        assert_eq!(verdict, Verdict { duplicates: 1, ..GOOD });
        assert!(verdict.is_good() && !verdict.is_exact());
    }

    #[test]
    fn duplicate_does_not_hide_a_lost_event() {
        let verdict = after(|records| records[3] = event(0, 2));
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, duplicates: 1, ..GOOD });
    }

    #[test]
    fn event_after_a_later_one_of_its_key_is_found() {
        let verdict = after(|records| records.swap(0, 1));
        assert_eq!(verdict, Verdict { reordered: 1, ..GOOD });
        assert!(!verdict.is_good());
        assert_eq!(after(|records| records.swap(1, 3)), Verdict { reordered: 1, ..GOOD });
    }

    #[test]
    fn key_in_two_partitions_has_no_order() {
        assert_eq!(after(|records| records[3].partition = 5), Verdict { reordered: 1, ..GOOD });
    }

    #[test]
    fn second_event_with_the_same_number_is_foreign() {
        let verdict = after(|records| records.push(Recognized { event_id: 9, ..event(0, 2) }));
        assert_eq!(verdict, Verdict { foreign: 1, ..GOOD });
        assert!(!verdict.is_good());
    }

    #[test]
    fn altered_event_is_found() {
        let verdict = after(|records| records[0].altered = true);
        assert_eq!(verdict, Verdict { altered: 1, ..GOOD });
        assert!(!verdict.is_good());
    }
}
