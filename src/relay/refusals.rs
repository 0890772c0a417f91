//! What topics have refused of late: how large a row was, and how many rows without an acceptance between them.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// So many rows of a topic are told apart; nobody counts further.
const ROWS_MAX: usize = 1_000;

/// Shared by the workers and the prober of one relay. Usually empty.
pub struct Refusals {
    topics: RefCell<HashMap<String, Refused>>,
}

struct Refused {
    /// Rows that were refused alone, since one was accepted. One that comes again, since its verdict could not be
    /// recorded, is the same row.
    rows: HashSet<Uuid>,
    /// The smallest row that was refused alone for its size.
    size: usize,
}

impl Refusals {
    /// Nothing was refused.
    pub fn new() -> Refusals {
        Refusals { topics: RefCell::default() }
    }

    /// A row was refused alone; if for its size, `too_large` is that size. Returns how many have been, since one was
    /// accepted.
    pub fn refused(&self, topic: &str, row: Uuid, too_large: Option<usize>) -> usize {
        let mut topics = self.topics.borrow_mut();
        let none = || Refused { rows: HashSet::new(), size: usize::MAX };
        let refused = topics.entry(topic.to_owned()).or_insert_with(none);
        if refused.rows.len() < ROWS_MAX {
            refused.rows.insert(row);
        }
        refused.size = refused.size.min(too_large.unwrap_or(usize::MAX));
        refused.rows.len()
    }

    /// Rows were accepted, the largest of them of this size.
    pub fn accepted(&self, topic: &str, size: usize) {
        let mut topics = self.topics.borrow_mut();
        if let Some(refused) = topics.get_mut(topic) {
            refused.rows.clear();
            if size >= refused.size {
                refused.size = usize::MAX; // Somebody has raised the limit.
            }
            if refused.size == usize::MAX {
                topics.remove(topic);
            }
        }
    }

    /// Nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.topics.borrow().is_empty()
    }

    /// A row of this size or more is probably refused.
    pub fn size_of(&self, topic: &str) -> usize {
        self.topics.borrow().get(topic).map_or(usize::MAX, |refused| refused.size)
    }
}

impl Default for Refusals {
    fn default() -> Self {
        Refusals::new()
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
    fn the_smallest_size_refused_is_remembered_until_a_larger_row_is_accepted() {
        let refusals = Refusals::new();
        refusals.refused("a", row(1), Some(500));
        refusals.refused("a", row(2), Some(900));
        refusals.accepted("a", 499);
        assert_eq!(refusals.size_of("a"), 500);
        refusals.accepted("a", 700);
        assert_eq!(refusals.size_of("a"), usize::MAX);
        assert!(refusals.is_empty());
    }
}
