//! What topics have refused: how many rows since they last accepted one, and the sizes of the rows.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use uuid::Uuid;

/// How many refused rows of a topic are remembered. If there are more, they are forgotten, but still counted.
const ROWS_MAX: usize = 1_000;
/// How many topics are remembered. Invalid names can be any number of different ones.
const TOPICS_MAX: usize = 1_000;

/// Shared by the workers and the prober of one relay. Usually empty. Clones share their content.
#[derive(Clone, Default)]
pub struct Refusals {
    topics: Rc<RefCell<HashMap<String, RefusedRows>>>,
    pub(crate) sizes: RefusedSizes,
}

/// The rows of a topic that were refused alone, or before they were sent, since the last accepted row.
#[derive(Default)]
struct RefusedRows {
    count: usize,
    /// How many of them were refused before they were sent. They are counted until a row is sent, because Kafka has not
    /// answered yet when the next row of the batch is refused.
    unsent: usize,
    /// The latest of them. A row that is judged again because its rejection could not be recorded counts once.
    latest: HashSet<Uuid>,
}

impl Refusals {
    /// No refusals.
    pub fn new() -> Refusals {
        Refusals::default()
    }

    /// Records a row that was refused alone. `too_large` is its size if that was the reason. Returns how many rows were
    /// refused since the last accepted row.
    pub(crate) fn refused(&self, topic: &str, row: Uuid, too_large: Option<usize>) -> usize {
        if let Some(size) = too_large {
            self.sizes.refused(topic, size);
        }
        self.count(topic, row, 0)
    }

    /// Records a row that was refused before it was sent. Returns the same as [`Refusals::refused`].
    pub(crate) fn refused_unsent(&self, topic: &str, row: Uuid) -> usize {
        self.count(topic, row, 1)
    }

    fn count(&self, topic: &str, row: Uuid, unsent: usize) -> usize {
        let mut topics = self.topics.borrow_mut();
        if topics.len() == TOPICS_MAX && !topics.contains_key(topic) {
            topics.clear();
        }
        let rows = topics.entry(topic.to_owned()).or_default();
        if rows.latest.len() == ROWS_MAX && !rows.latest.contains(&row) {
            rows.latest.clear();
        }
        if rows.latest.insert(row) {
            rows.count += 1;
            rows.unsent += unsent;
        }
        rows.count
    }

    /// Records that a row was sent, so the rows before it that were refused unsent show nothing about the topic.
    pub(crate) fn sent(&self, topic: &str) {
        let mut topics = self.topics.borrow_mut();
        if topics.is_empty() {
            return;
        }
        let Some(rows) = topics.get_mut(topic) else { return };
        rows.count -= std::mem::take(&mut rows.unsent);
        if rows.count == 0 {
            topics.remove(topic);
        }
    }

    /// Whether no topic has refused a row since it last accepted one.
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.borrow().is_empty()
    }

    /// Records that rows were accepted. `size` is that of the largest, or 0 if it is unknown. Rows that were refused unsent
    /// after these were sent still count.
    pub(crate) fn accepted(&self, topic: &str, size: usize) {
        let mut topics = self.topics.borrow_mut();
        if let Some(rows) = topics.get_mut(topic) {
            rows.count = rows.unsent;
            if rows.count == 0 {
                topics.remove(topic);
            }
        }
        self.sizes.accepted(topic, size);
    }
}

/// For each topic, the size of the smallest row that was refused because of its size. Clones share their content.
#[derive(Clone, Default)]
pub(crate) struct RefusedSizes(Rc<RefCell<HashMap<String, usize>>>);

impl RefusedSizes {
    /// Records that a row of this size was refused alone.
    pub(crate) fn refused(&self, topic: &str, size: usize) {
        let mut sizes = self.0.borrow_mut();
        let smallest = sizes.entry(topic.to_owned()).or_insert(size);
        *smallest = size.min(*smallest);
    }

    /// Records that a row of this size was accepted. If a smaller one was refused before, the topic's limit was raised.
    pub(crate) fn accepted(&self, topic: &str, size: usize) {
        let mut sizes = self.0.borrow_mut();
        if sizes.get(topic).is_some_and(|smallest| size >= *smallest) {
            sizes.remove(topic);
        }
    }

    /// Whether the topic has refused a row of this size or a smaller one.
    pub(crate) fn covers(&self, topic: &str, size: usize) -> bool {
        let sizes = self.0.borrow();
        !sizes.is_empty() && sizes.get(topic).is_some_and(|smallest| size >= *smallest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn refusals_in_a_row_are_counted_until_one_is_accepted() {
        let refusals = Refusals::new();
        assert_eq!(refusals.refused("a", row(1), None), 1);
        assert_eq!(refusals.refused("a", row(2), None), 2);
        assert_eq!(refusals.refused("b", row(3), None), 1);
        refusals.accepted("a", 10);
        assert_eq!(refusals.refused("a", row(4), None), 1);
    }

    #[test]
    fn a_row_that_is_judged_twice_is_counted_once() {
        let refusals = Refusals::new();
        assert_eq!(refusals.refused("a", row(1), None), 1);
        assert_eq!(refusals.refused("a", row(1), None), 1);
    }

    /// The limit can be a million.
    #[test]
    fn more_rows_are_counted_than_remembered() {
        let refusals = Refusals::new();
        for number in 1..=5_000 {
            let row = row(number as u128);
            assert_eq!(refusals.refused("a", row, None), number);
            assert_eq!(refusals.refused("a", row, None), number, "judged again");
        }
        assert!(refusals.topics.borrow()["a"].latest.len() <= ROWS_MAX);
    }

    #[test]
    fn rows_refused_unsent_are_counted_until_one_is_sent() {
        let refusals = Refusals::new();
        assert_eq!(refusals.refused("a", row(1), None), 1);
        assert_eq!(refusals.refused_unsent("a", row(2)), 2);
        assert_eq!(refusals.refused_unsent("a", row(3)), 3);
        refusals.sent("b");
        assert_eq!(refusals.refused_unsent("a", row(4)), 4);
        refusals.sent("a");
        assert_eq!(refusals.refused_unsent("a", row(5)), 2, "Kafka has not accepted the row yet");
        refusals.accepted("a", 10);
        assert_eq!(refusals.refused_unsent("a", row(6)), 2, "row 5 was not sent before the accepted one");
        refusals.sent("a");
        assert!(refusals.topics.borrow().is_empty());
    }

    #[test]
    fn any_number_of_invalid_names_takes_bounded_memory() {
        let refusals = Refusals::new();
        for number in 0..10 * TOPICS_MAX {
            refusals.refused_unsent(&format!("a b {number}"), row(1));
        }
        assert!(refusals.topics.borrow().len() <= TOPICS_MAX);
    }

    #[test]
    fn a_refused_size_is_kept_when_a_smaller_row_is_accepted() {
        let refusals = Refusals::new();
        refusals.refused("a", row(1), Some(500));
        refusals.accepted("a", 499);
        assert!(refusals.sizes.covers("a", 500));
        assert_eq!(refusals.refused("a", row(2), Some(900)), 1);
        refusals.accepted("a", 500);
        assert!(refusals.topics.borrow().is_empty() && refusals.sizes.0.borrow().is_empty());
    }

    #[test]
    fn the_smallest_refused_size_counts_until_a_larger_row_is_accepted() {
        let sizes = RefusedSizes::default();
        sizes.refused("a", 500);
        sizes.refused("a", 900);
        sizes.accepted("a", 499);
        let covered = |size| (sizes.covers("a", size), sizes.covers("b", size));
        assert_eq!(
            (covered(499), covered(500), covered(900)),
            ((false, false), (true, false), (true, false))
        );
        sizes.accepted("a", 700);
        assert!(!sizes.covers("a", 900) && sizes.0.borrow().is_empty());
    }
}
