//! Queries of the tables.

use super::server::{Server, State};
use super::tables::{Hold, Row, Scope};
use crate::event::SimEvent;
use crate::plan::Sabotage;
use crate::promises::Damage;
use relay::lanes::Lane;
use relay::outbox::{Epoch, Event};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

impl Server {
    /// The unsent rows of these lanes, by lane and then by id: above `low`, except rows of held topics and paused rows.
    pub fn pending(&self, reader: u64, lanes: &[Lane], low: impl Fn(usize) -> i64) -> Vec<SimEvent> {
        let state = self.state.borrow();
        let skips_locked = self.world.breaks(Sabotage::RowsSkipLocked);
        let remembered = self.world.breaks(Sabotage::PausesCached).then(|| self.remembered_pauses(&state));
        let paused = remembered.as_ref().unwrap_or(&state.tables.paused);
        let by_type = self.world.breaks(Sabotage::TopicsByTypeAlone);
        let waits = |event: &SimEvent| {
            let seen = if by_type { event.in_topic(event.kind) } else { *event };
            state.tables.holds.contains_key(&seen.topic) || paused.iter().any(|scope| scope.covers(&seen))
        };
        let mut found: Vec<(usize, SimEvent)> = Vec::new();
        for event in state.tables.waiting() {
            let Some(place) = lanes.iter().position(|asked| *asked == event.lane()) else { continue };
            let skipped = self.world.breaks(Sabotage::UnreadableSkipped)
                && self.promises.damage(event.identity) != Damage::None;
            let locked =
                skipped || skips_locked && state.row_locks.get(&event.id).is_some_and(|by| *by != reader);
            if event.id > low(place) && !waits(&event) && !locked {
                found.push((place, event));
            }
        }
        found.sort_by_key(|(place, event)| (*place, event.id));
        found.into_iter().map(|(_, event)| event).collect()
    }

    /// The pauses of up to a second ago.
    fn remembered_pauses(&self, state: &State) -> BTreeSet<Scope> {
        let mut remembered = self.remembered.borrow_mut();
        if remembered.0.elapsed() > Duration::from_secs(1) {
            *remembered = (Instant::now(), state.tables.paused.clone());
        }
        remembered.1.clone()
    }

    /// The first unsent row of this row's topic and key, held or not, unless it is paused.
    pub fn first_of_key_of(&self, id: i64) -> Vec<SimEvent> {
        let state = self.state.borrow();
        let Some(row) = state.tables.rows.get(&id) else { return Vec::new() };
        let ignored = self.world.breaks(Sabotage::ProbedThoughPaused);
        if !ignored && state.tables.paused.iter().any(|scope| scope.covers(&row.event)) {
            return Vec::new();
        }
        let same = |event: &SimEvent| (event.topic, event.key) == (row.event.topic, row.event.key);
        state.tables.waiting().find(same).into_iter().collect()
    }

    /// This row, if it is unsent, whatever it waits for.
    pub fn unsent(&self, id: i64) -> Option<SimEvent> {
        let state = self.state.borrow();
        let row = state.tables.rows.get(&id).filter(|row| row.sent_at.is_none())?;
        let waits = self.world.breaks(Sabotage::SettledLateUnlessPaused);
        let paused = || state.tables.paused.iter().any(|scope| scope.covers(&row.event));
        if waits && paused() { None } else { Some(row.event) }
    }

    /// A row for probing a held topic: of the key that caused the hold or, if there is none or `any` is set, the first
    /// row of some lane.
    pub fn example(&self, topic: u8, any: bool) -> Option<SimEvent> {
        let state = self.state.borrow();
        let key = state.tables.holds.get(&topic).and_then(|hold| hold.key).filter(|_| !any);
        let of_key = |scope: &&Scope| matches!(scope, Scope::Key(..));
        let key_paused =
            |event: &SimEvent| state.tables.paused.iter().filter(of_key).any(|scope| scope.covers(event));
        let rows = || state.tables.waiting().filter(|event| event.topic == topic && !key_paused(event));
        if let Some(row) = rows().find(|event| Some(event.key) == key) {
            return Some(row);
        }
        let mut firsts: BTreeMap<usize, SimEvent> = BTreeMap::new();
        for row in rows() {
            firsts.entry(row.lane().index()).or_insert(row);
        }
        let place = self.world.below(firsts.len().max(1) as u64) as usize;
        firsts.into_values().nth(place)
    }

    /// The version of the set of holds.
    pub fn hold_version(&self) -> i64 {
        let state = self.state.borrow();
        let tables = &state.tables;
        if self.world.breaks(Sabotage::AdditionsUncounted) { tables.removals } else { tables.hold_version }
    }

    pub fn epoch(&self) -> Epoch {
        let state = self.state.borrow();
        let tables = &state.tables;
        let removals = match self.world.plan.sabotage {
            Some(Sabotage::MarkKeptOverHold) => 0,
            Some(Sabotage::MarkKeptOverRemoval) => tables.hold_version - tables.removals,
            _ => tables.removals,
        };
        let file = if self.world.breaks(Sabotage::MarkKeptOverTruncate) { 0 } else { tables.file };
        Epoch { table_file: file as u32, ended: removals as u32 }
    }

    /// The rows that match, for users who change rows manually.
    pub fn rows(&self, fits: impl Fn(&Row) -> bool) -> Vec<Row> {
        self.state.borrow().tables.rows.values().copied().filter(fits).collect()
    }

    /// The dead letters.
    pub fn dead(&self) -> Vec<SimEvent> {
        self.state.borrow().tables.dead.values().copied().collect()
    }

    /// The held topic, if this topic is held. Without an argument, the first held topic.
    pub fn held(&self, topic: Option<u8>) -> Option<u8> {
        let state = self.state.borrow();
        state.tables.holds.keys().copied().find(|held| topic.is_none_or(|topic| topic == *held))
    }

    /// The number of held topics, and the number of rows that block their keys.
    pub fn holds(&self) -> (usize, usize) {
        let state = self.state.borrow();
        (state.tables.holds.len(), state.tables.blocked.len())
    }

    /// Everything that is paused.
    pub fn paused(&self) -> Vec<Scope> {
        self.state.borrow().tables.paused.iter().copied().collect()
    }

    /// The rows that block their keys.
    pub fn blocked(&self) -> Vec<SimEvent> {
        self.state.borrow().tables.blocked.values().copied().collect()
    }

    /// A topic that is due for a probe and not paused. No other relay gets it during the lease.
    pub fn due(&self, lease: Duration) -> Option<(u8, &'static str)> {
        let mut state = self.state.borrow_mut();
        let now = Instant::now();
        let ignored = self.world.breaks(Sabotage::ProbedThoughPaused);
        let is_due = |(topic, hold): &(&u8, &Hold)| {
            hold.probe_at <= now && (ignored || !state.tables.is_paused(**topic))
        };
        let topic = *state.tables.holds.iter().find(is_due)?.0;
        let hold = state.tables.holds.get_mut(&topic)?;
        (hold.probe_at, hold.is_leased) = (now + lease, true);
        Some((topic, hold.reason))
    }

    /// Postpones the probe of a topic.
    pub fn postpone(&self, topic: u8, time: Duration) {
        if let Some(hold) = self.state.borrow_mut().tables.holds.get_mut(&topic) {
            (hold.probe_at, hold.is_leased) = (Instant::now() + time, false);
        }
    }

    /// Renews the lease on a topic.
    pub fn renew_lease(&self, topic: u8, lease: Duration) {
        if let Some(hold) = self.state.borrow_mut().tables.holds.get_mut(&topic) {
            (hold.probe_at, hold.is_leased) = (Instant::now() + lease, true);
        }
    }

    /// Whether a relay is probing the topic.
    pub fn is_leased(&self, topic: u8) -> bool {
        self.state.borrow().tables.holds.get(&topic).is_some_and(|hold| hold.is_leased)
    }

    /// Whether every committed row is sent, dead-lettered, or blocked.
    pub fn is_settled(&self) -> bool {
        self.state.borrow().tables.waiting().next().is_none()
    }

    /// Whether a row's key is blocked.
    pub fn is_blocked(&self, event: &SimEvent) -> bool {
        self.state.borrow().tables.is_blocked(event)
    }

    /// Whether this row blocks its key, or follows a row that does. A row of another topic may have been held when the key
    /// was blocked.
    pub fn is_behind_block(&self, event: &SimEvent) -> bool {
        let waits_for = |blocks: &SimEvent| {
            event.has_key_of(blocks) && (blocks.id <= event.id || blocks.topic != event.topic)
        };
        self.blocked().iter().any(waits_for)
    }
}
