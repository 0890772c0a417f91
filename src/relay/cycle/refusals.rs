//! What topics have refused lately: how many rows since they last accepted one, and how large the rows were.

use crate::relay::cycle::large_rows::RefusedSizes;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// This many rows of a topic are counted at most.
const ROWS_MAX: usize = 1_000;

/// Shared by the workers and the prober of one relay. Usually empty.
#[derive(Default)]
pub struct Refusals {
    /// The rows of each topic that were refused alone since one was accepted. A row that is judged again, since its
    /// verdict could not be recorded, counts once.
    rows: RefCell<HashMap<String, HashSet<Uuid>>>,
    /// Which sizes were refused.
    pub(crate) sizes: RefusedSizes,
}

impl Refusals {
    /// Nothing was refused.
    pub fn new() -> Refusals {
        Refusals::default()
    }

    /// A row was refused alone; if for its size, `too_large` is that size. Returns how many rows were refused since one
    /// was accepted.
    pub fn refused(&self, topic: &str, row: Uuid, too_large: Option<usize>) -> usize {
        if let Some(size) = too_large {
            self.sizes.refused(topic, size);
        }
        let mut topics = self.rows.borrow_mut();
        let rows = topics.entry(topic.to_owned()).or_default();
        if rows.len() < ROWS_MAX {
            rows.insert(row);
        }
        rows.len()
    }

    /// Rows were accepted, the largest of them of this size.
    pub fn accepted(&self, topic: &str, size: usize) {
        self.rows.borrow_mut().remove(topic);
        self.sizes.accepted(topic, size);
    }

    /// Nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.rows.borrow().is_empty() && self.sizes.is_empty()
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
    fn a_row_whose_verdict_could_not_be_recorded_is_counted_once() {
        let refusals = Refusals::new();
        assert_eq!(refusals.refused("a", row(1), None), 1);
        assert_eq!(refusals.refused("a", row(1), None), 1);
    }

    #[test]
    fn a_size_is_remembered_when_a_smaller_row_is_accepted() {
        let refusals = Refusals::new();
        refusals.refused("a", row(1), Some(500));
        refusals.accepted("a", 499);
        assert!(refusals.sizes.covers("a", 500) && !refusals.is_empty());
        assert_eq!(refusals.refused("a", row(2), Some(900)), 1);
        refusals.accepted("a", 500);
        assert!(refusals.is_empty());
    }
}
