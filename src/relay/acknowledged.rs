//! The acknowledged set: what Kafka has acknowledged and no confirmed COMMIT has recorded yet.
//!
//! It is the whole recovery path. Whatever made a settlement fail, a claim that reads such a row again settles it
//! without publishing it. The row is recognised by id *and* event_id: after a failover ids are issued again.
//!
//! Bounded: a lane's rows are claimed again before anything behind them, so each lane holds at most one batch here.

use super::batch::Reach;
use super::event::Event;
use super::lane::{LANES, Lane};
use std::collections::HashMap;
use uuid::Uuid;

/// Acknowledged rows whose settlement is not confirmed.
pub struct Acknowledged {
    lanes: Vec<HashMap<i64, Uuid>>,
    len: usize,
}

impl Acknowledged {
    /// None.
    pub fn new() -> Acknowledged {
        Acknowledged { lanes: vec![HashMap::new(); LANES], len: 0 }
    }

    /// Keeps rows that were acknowledged while their settlement failed, or may have.
    pub fn keep<'a, E: Event + 'a>(&mut self, rows: impl Iterator<Item = &'a E>) {
        for row in rows {
            if self.lanes[row.lane().index()].insert(row.id(), row.event_id()).is_none() {
                self.len += 1;
            }
        }
    }

    /// Kafka has acknowledged this very row.
    pub fn contains<E: Event>(&self, row: &E) -> bool {
        self.len > 0 && self.lanes[row.lane().index()].get(&row.id()) == Some(&row.event_id())
    }

    /// A confirmed claim covered these parts of its lanes: what it read there is settled, and what it did not read is
    /// settled already. To keep an entry would swallow an operator's `sent_at = NULL`.
    pub fn forget(&mut self, reach: &[Reach]) {
        if self.len == 0 {
            return;
        }
        for reach in reach {
            if let Some(covers_to) = reach.covers_to() {
                let lane = &mut self.lanes[reach.lane.index()];
                let before = lane.len();
                lane.retain(|&id, _| id > covers_to);
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
    pub fn has_any_of(&self, lanes: &[Lane]) -> bool {
        self.len > 0 && lanes.iter().any(|lane| !self.lanes[lane.index()].is_empty())
    }

    /// The lanes that have any: they need a claim even if nothing in them is new.
    pub fn lanes(&self) -> impl Iterator<Item = Lane> {
        Lane::all().filter(|lane| !self.lanes[lane.index()].is_empty())
    }
}

impl Default for Acknowledged {
    fn default() -> Self {
        Acknowledged::new()
    }
}
