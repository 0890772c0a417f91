//! The ids that reads have seen committed, and the gaps between them: what a flow still has to search for.
//!
//! Ids come from one sequence for all lanes, so a committed row of any lane fills its gap. An id stays a gap while its
//! transaction is open, and also after it was rolled back. The fence removes it: no transaction can commit an id up to the
//! fence any more.

use std::collections::BTreeSet;

/// The maximum number of gaps that a flow searches. Each is one index lookup per read.
pub(crate) const GAPS_MAX: usize = 1_000;

/// Seen ids of one epoch of the marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenIds {
    /// For ids up to this one, it is unknown which were seen.
    unknown_to: i64,
    /// The highest id seen, or the fence if that is higher.
    highest: i64,
    /// Unseen ids between the two.
    gaps: BTreeSet<i64>,
    gaps_max: usize,
}

impl SeenIds {
    /// No ids, with room for this many gaps.
    pub(crate) fn new(gaps_max: usize) -> SeenIds {
        SeenIds { unknown_to: i64::MIN, highest: i64::MIN, gaps: BTreeSet::new(), gaps_max }
    }

    /// The highest id seen.
    pub(crate) fn highest(&self) -> i64 {
        self.highest
    }

    /// The gaps, in order.
    pub(crate) fn gaps(&self) -> Vec<i64> {
        self.gaps.iter().copied().collect()
    }

    /// Whether this id was seen.
    pub(crate) fn has(&self, id: i64) -> bool {
        id <= self.highest && !self.gaps.contains(&id) && id >= self.unknown_to
    }

    /// Notes that a read returned these ids.
    pub fn add(&mut self, ids: impl IntoIterator<Item = i64>) {
        let mut ids: Vec<i64> = ids.into_iter().collect();
        let Some(last) = ids.iter().max().copied() else { return };
        // A slice of a backlog: there is no need to sort its ids.
        if last.saturating_sub(self.highest) > (self.gaps_max + ids.len()) as i64 {
            return self.skip_to(last);
        }
        if last <= self.highest && self.gaps.is_empty() {
            return;
        }
        ids.sort_unstable();
        for id in ids {
            if id <= self.highest {
                self.gaps.remove(&id);
                continue;
            }
            if self.gaps.len() as i64 + (id - self.highest - 1) > self.gaps_max as i64 {
                self.skip_to(id);
            } else {
                self.gaps.extend(self.highest + 1..id);
                self.highest = id;
            }
        }
    }

    /// Discards the gaps below this id, because there are too many.
    fn skip_to(&mut self, id: i64) {
        (self.unknown_to, self.highest) = (id, id);
        self.gaps.clear();
    }

    /// Ids up to this one were read or will never be committed. Returns whether every id is accounted for: seen, a gap, or
    /// greater than the highest one.
    pub fn pass(&mut self, fenced: i64) -> bool {
        if fenced >= self.highest {
            self.highest = fenced;
            self.gaps.clear();
        } else {
            self.gaps = self.gaps.split_off(&fenced.saturating_add(1));
        }
        self.highest > i64::MIN && fenced >= self.unknown_to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ids: &[i64]) -> SeenIds {
        let mut seen = SeenIds::new(GAPS_MAX);
        seen.add(ids.iter().copied());
        seen
    }

    #[test]
    fn an_id_between_seen_ids_is_a_gap_until_it_is_seen() {
        let mut seen = seen(&[3]);
        assert!(seen.pass(3));
        seen.add([8, 5]);
        assert_eq!((seen.highest(), seen.gaps()), (8, vec![4, 6, 7]));
        seen.add([6]);
        assert_eq!((seen.highest(), seen.gaps()), (8, vec![4, 7]));
    }

    #[test]
    fn ids_before_the_first_seen_id_are_unknown_until_the_fence_passes_it() {
        let mut seen = seen(&[7, 9]);
        assert!(!seen.pass(8), "row 8 may be uncommitted");
        assert!(seen.pass(9));
        seen.add([11]);
        assert_eq!(seen.gaps(), [10]);
    }

    #[test]
    fn the_fence_removes_gaps() {
        let mut seen = seen(&[1]);
        seen.add([4, 7]);
        assert!(seen.pass(3));
        assert_eq!(seen.gaps(), [5, 6]);
        assert!(seen.pass(9), "the fence may be above all ids that this relay saw");
        assert_eq!((seen.highest(), seen.gaps()), (9, vec![]));
    }

    #[test]
    fn too_many_gaps_are_unknown_ids() {
        let mut seen = seen(&[1]);
        assert!(seen.pass(1));
        seen.add([2 + GAPS_MAX as i64]);
        assert_eq!(seen.gaps().len(), GAPS_MAX);
        assert!(seen.pass(1));
        seen.add([4 + GAPS_MAX as i64]);
        assert_eq!(seen.gaps(), [0; 0]);
        assert!(!seen.pass(1));
        assert!(seen.pass(4 + GAPS_MAX as i64));
        assert!(!SeenIds::new(GAPS_MAX).pass(i64::MIN));
        seen.add([i64::MAX]);
        assert!(!seen.pass(5_000), "one very large id");
    }
}
