//! Large rows: Kafka refuses a whole request because of one record that is too large for its topic. A row that is at
//! least as large as one that its topic has refused is therefore kept back and judged alone, before it fails the session.

use crate::relay::cycle::session::Place;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// For each topic, the size of the smallest row that it has refused for its size. A handle: clones share their content.
/// Usually empty.
#[derive(Clone, Default)]
pub struct RefusedSizes(Rc<RefCell<HashMap<String, usize>>>);

impl RefusedSizes {
    /// A row of this size was refused alone, for its size.
    pub fn refused(&self, topic: &str, size: usize) {
        let mut sizes = self.0.borrow_mut();
        let smallest = sizes.entry(topic.to_owned()).or_insert(size);
        *smallest = size.min(*smallest);
    }

    /// A row of this size was accepted. If a smaller one was refused before, somebody has raised the topic's limit.
    pub fn accepted(&self, topic: &str, size: usize) {
        let mut sizes = self.0.borrow_mut();
        if sizes.get(topic).is_some_and(|smallest| size >= *smallest) {
            sizes.remove(topic);
        }
    }

    /// Whether the topic has refused a row of this size or a smaller one.
    pub fn covers(&self, topic: &str, size: usize) -> bool {
        let sizes = self.0.borrow();
        !sizes.is_empty() && sizes.get(topic).is_some_and(|smallest| size >= *smallest)
    }

    /// No topic has refused a row for its size.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// The partitions of the current batch in which a large row waits to be judged. Later rows of these partitions wait for
/// the next batch.
#[derive(Default)]
pub(crate) struct KeptBack {
    sizes: RefusedSizes,
    partitions: Vec<Place>,
}

impl KeptBack {
    /// Begins a batch.
    pub(crate) fn begin(&mut self, sizes: &RefusedSizes) {
        self.sizes = sizes.clone();
        self.partitions.clear();
    }

    /// Whether the rows of this partition wait behind a large row.
    pub(crate) fn blocks(&self, place: Place) -> bool {
        !self.partitions.is_empty() && self.partitions.contains(&place)
    }

    /// Keeps a row of this size back if its topic would probably refuse it. Every earlier row of its partition has to be
    /// sent by then: it is judged only after they are acknowledged.
    pub(crate) fn keeps(&mut self, place: Place, topic: &str, size: usize) -> bool {
        let is_large = self.sizes.covers(topic, size);
        if is_large {
            self.partitions.push(place);
        }
        is_large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!sizes.covers("a", 900) && sizes.is_empty());
    }
}
