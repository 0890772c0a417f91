//! The acknowledged set: rows that Kafka has acknowledged and that no confirmed COMMIT has recorded yet.
//!
//! It is the whole recovery path: a claim that reads such a row again settles it without publishing it. Rows are identified
//! by id *and* event_id, because ids are issued again after a failover.
//!
//! A row that has since been held, blocked or paused is not read although it is unsent. An entry is therefore kept after a claim
//! that does not read its row, unless that claim saw the same set of holds as the one that published it, or no holds.
//!
//! The set is bounded: the rows of a lane are claimed again before later ones, so each lane has at most one batch here, plus
//! one for each failed settlement during which the set of holds changed, until nothing is held any more.

use crate::event::Event;
use crate::lane::{LANES, Lane};
use crate::rows::coverage::Coverage;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// The version for rows of a read that failed, and for rows that a probe published: the set of holds is unknown, so it is never the
/// same as another one.
pub const UNKNOWN_HOLDS: i64 = -1;

/// Acknowledged rows whose settlement is not confirmed.
pub struct Acknowledged {
    lanes: Vec<HashMap<i64, Entry>>,
    len: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    event_id: Uuid,
    /// The set of holds under which its row was read.
    hold_version: i64,
    /// A claim did not read the row, so its topic may be held. The row is read again when the hold ends.
    hidden: bool,
}

/// The set of holds under which a claim read rows.
#[derive(Clone, Copy, Debug)]
pub struct HoldsSeen {
    /// The version of the set, or [`UNKNOWN_HOLDS`].
    pub hold_version: i64,
    /// Whether the set is known to be empty.
    pub nothing_held: bool,
}

impl Acknowledged {
    /// An empty set.
    pub fn new() -> Acknowledged {
        Acknowledged { lanes: vec![HashMap::new(); LANES], len: 0 }
    }

    /// Adds acknowledged rows whose settlement failed or may have failed.
    pub fn keep<'a, E: Event + 'a>(&mut self, rows: impl Iterator<Item = &'a E>, hold_version: i64) {
        for row in rows {
            let entry = Entry { event_id: row.event_id(), hold_version, hidden: false };
            if self.lanes[row.lane().index()].insert(row.id(), entry).is_none() {
                self.len += 1;
            }
        }
    }

    /// Removes rows that a confirmed COMMIT has recorded as sent. Otherwise an operator's `sent_at = NULL` would be ignored.
    pub(crate) fn settled<'a, E: Event + 'a>(&mut self, rows: impl Iterator<Item = &'a E>) {
        for row in rows {
            if self.contains(row) {
                self.lanes[row.lane().index()].remove(&row.id());
                self.len -= 1;
            }
        }
    }

    /// Whether Kafka has acknowledged this row.
    pub fn contains<E: Event>(&self, row: &E) -> bool {
        let entry = || self.lanes[row.lane().index()].get(&row.id());
        self.len > 0 && entry().is_some_and(|entry| entry.event_id == row.event_id())
    }

    /// Removes the rows that a claim covered. Those that it read, `rows`, are settled, or the caller adds them again. Others
    /// were settled before, unless they may be held. If they stayed, an operator's `sent_at = NULL` would be ignored.
    pub fn forget<E: Event>(&mut self, coverage: &[Coverage], rows: &[E], seen: HoldsSeen) {
        if self.len == 0 {
            return;
        }
        let known = seen.hold_version != UNKNOWN_HOLDS;
        let read: HashSet<i64> = rows.iter().map(Event::id).collect();
        for coverage in coverage {
            if let Some(covers_to) = coverage.covers_to() {
                let lane = &mut self.lanes[coverage.lane.index()];
                let before = lane.len();
                lane.retain(|id, entry| {
                    let shows = seen.nothing_held || known && entry.hold_version == seen.hold_version;
                    entry.hidden |= *id <= covers_to;
                    *id > covers_to || !(shows || read.contains(id))
                });
                self.len -= before - lane.len();
            }
        }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The ids and event ids of the rows.
    pub fn ids(&self) -> (Vec<i64>, Vec<Uuid>) {
        self.lanes.iter().flatten().map(|(id, entry)| (*id, entry.event_id)).unzip()
    }

    /// The number of rows of this lane.
    pub(crate) fn count(&self, lane: Lane) -> usize {
        self.lanes[lane.index()].len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether any of these lanes has rows that are not hidden.
    pub(crate) fn has_any_of(&self, lanes: &[Lane]) -> bool {
        self.len > 0 && lanes.iter().any(|lane| self.shows(*lane))
    }

    /// The lanes that have rows that are not hidden. They need a claim even if they have no new rows.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lane> {
        Lane::all().filter(|lane| self.shows(*lane))
    }

    fn shows(&self, lane: Lane) -> bool {
        self.lanes[lane.index()].values().any(|entry| !entry.hidden)
    }
}

impl Default for Acknowledged {
    fn default() -> Self {
        Acknowledged::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::fixture::Row;

    fn after_claim(read: &[Row], seen: HoldsSeen) -> Acknowledged {
        after_claim_of(3, read, seen)
    }

    fn after_claim_of(kept_under: i64, read: &[Row], seen: HoldsSeen) -> Acknowledged {
        let mut acknowledged = Acknowledged::new();
        acknowledged.keep([Row(1), Row(2)].iter(), kept_under);
        let whole = Coverage {
            lane: Row(1).lane(),
            last_read: Some(9),
            first_open: None,
            cut: false,
            used_share: false,
        };
        acknowledged.forget(&[whole], read, seen);
        acknowledged
    }

    #[test]
    fn a_row_that_a_claim_did_not_read_is_removed_if_nothing_new_is_held() {
        assert!(after_claim(&[Row(1)], HoldsSeen { hold_version: 3, nothing_held: false }).is_empty());
        assert!(after_claim(&[Row(1)], HoldsSeen { hold_version: 4, nothing_held: true }).is_empty());
    }

    #[test]
    fn a_row_that_may_be_held_is_kept_and_needs_no_claim() {
        let acknowledged = after_claim(&[Row(1)], HoldsSeen { hold_version: 4, nothing_held: false });
        assert!(!acknowledged.contains(&Row(1)), "it was read, so it is settled now");
        assert!(acknowledged.contains(&Row(2)));
        assert_eq!(acknowledged.lanes().count(), 0);
        assert!(!acknowledged.has_any_of(&[Row(2).lane()]));
    }

    #[test]
    fn two_failed_reads_do_not_show_that_nothing_new_is_held() {
        let seen = HoldsSeen { hold_version: UNKNOWN_HOLDS, nothing_held: false };
        assert!(after_claim_of(UNKNOWN_HOLDS, &[Row(1)], seen).contains(&Row(2)));
    }
}
