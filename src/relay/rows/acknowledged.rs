//! The acknowledged set: what Kafka has acknowledged and no confirmed COMMIT has recorded yet.
//!
//! It is the whole recovery path. Whatever made a settlement fail, a claim that reads such a row again settles it
//! without publishing it. The row is recognised by id *and* event_id: after a failover ids are issued again.
//!
//! A row that is held, blocked or paused by now is not read, though it is unsent: an entry outlives a claim that does not
//! read its row, unless that claim saw the same set of holds as the one that published it, or none at all.
//!
//! Bounded: a lane's rows are claimed again before anything behind them, so each lane holds at most one batch here, and one
//! more for each change of the set of holds that a failed settlement fell together with, until nothing is held any more.

use crate::relay::event::Event;
use crate::relay::lane::{LANES, Lane};
use crate::relay::rows::reach::Reach;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

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
    /// A claim did not read it, and its topic may be held. It comes up by itself when the hold ends.
    hidden: bool,
}

/// What a claim saw that looked for rows.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The set of holds.
    pub hold_version: i64,
    /// Nothing is held or blocked in it, as far as is known.
    pub nothing_held: bool,
}

impl Acknowledged {
    /// None.
    pub fn new() -> Acknowledged {
        Acknowledged { lanes: vec![HashMap::new(); LANES], len: 0 }
    }

    /// Keeps rows that were acknowledged while their settlement failed, or may have.
    pub fn keep<'a, E: Event + 'a>(&mut self, rows: impl Iterator<Item = &'a E>, hold_version: i64) {
        for row in rows {
            let entry = Entry { event_id: row.event_id(), hold_version, hidden: false };
            if self.lanes[row.lane().index()].insert(row.id(), entry).is_none() {
                self.len += 1;
            }
        }
    }

    /// A confirmed COMMIT has recorded these rows as sent. To keep an entry would swallow an operator's `sent_at = NULL`.
    pub(crate) fn settled<'a, E: Event + 'a>(&mut self, rows: impl Iterator<Item = &'a E>) {
        for row in rows {
            if self.contains(row) {
                self.lanes[row.lane().index()].remove(&row.id());
                self.len -= 1;
            }
        }
    }

    /// Kafka has acknowledged this very row.
    pub fn contains<E: Event>(&self, row: &E) -> bool {
        let entry = || self.lanes[row.lane().index()].get(&row.id());
        self.len > 0 && entry().is_some_and(|entry| entry.event_id == row.event_id())
    }

    /// A confirmed claim covered these parts of its lanes: what it read there, `rows`, is settled, and what it did not
    /// read is settled already, unless it may be held. To keep an entry would swallow an operator's `sent_at = NULL`.
    pub fn forget<E: Event>(&mut self, reach: &[Reach], rows: &[E], seen: Seen) {
        if self.len == 0 {
            return;
        }
        let read: HashSet<i64> = rows.iter().map(Event::id).collect();
        for reach in reach {
            if let Some(covers_to) = reach.covers_to() {
                let lane = &mut self.lanes[reach.lane.index()];
                let before = lane.len();
                lane.retain(|id, entry| {
                    let shows = seen.nothing_held || entry.hold_version == seen.hold_version;
                    entry.hidden |= *id <= covers_to;
                    *id > covers_to || !(shows || read.contains(id))
                });
                self.len -= before - lane.len();
            }
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether any of these lanes has any.
    pub(crate) fn has_any_of(&self, lanes: &[Lane]) -> bool {
        self.len > 0 && lanes.iter().any(|lane| self.shows(*lane))
    }

    /// The lanes that have any: they need a claim even if nothing in them is new.
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
    use crate::relay::event::fixture::Row;

    fn after_claim(read: &[Row], seen: Seen) -> Acknowledged {
        let mut acknowledged = Acknowledged::new();
        acknowledged.keep([Row(1), Row(2)].iter(), 3);
        let whole =
            Reach { lane: Row(1).lane(), last_read: Some(9), first_open: None, cut: false, hungry: false };
        acknowledged.forget(&[whole], read, seen);
        acknowledged
    }

    #[test]
    fn a_row_that_a_claim_did_not_read_is_settled_if_nothing_new_is_held() {
        assert!(after_claim(&[Row(1)], Seen { hold_version: 3, nothing_held: false }).is_empty());
        assert!(after_claim(&[Row(1)], Seen { hold_version: 4, nothing_held: true }).is_empty());
    }

    #[test]
    fn a_row_that_may_be_held_is_remembered_and_asks_for_no_claim() {
        let acknowledged = after_claim(&[Row(1)], Seen { hold_version: 4, nothing_held: false });
        assert!(!acknowledged.contains(&Row(1)), "it was read, so it is settled now");
        assert!(acknowledged.contains(&Row(2)));
        assert_eq!(acknowledged.lanes().count(), 0);
        assert!(!acknowledged.has_any_of(&[Row(2).lane()]));
    }
}
