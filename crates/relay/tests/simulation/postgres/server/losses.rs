//! The end of backends, crashes that lose commits, and failovers.

use super::Server;
use crate::postgres::tables::{Change, Tables};
use crate::world::add;
use relay::lanes::LANES;

impl Server {
    /// Ends every backend, and with it every transaction that is not prepared.
    pub fn end_all_backends(&self, postmaster_too: bool) {
        self.world.note("every backend of PostgreSQL ends; the postmaster as well:", postmaster_too);
        let mut state = self.state.borrow_mut();
        state.generation += 1;
        state.started += i64::from(postmaster_too);
        state.transactions.clear();
        state.lanes = [0; LANES];
        state.row_locks.clear();
        drop(state);
        self.unlocked.notify_waiters();
    }

    /// A backend crashes. The last commits are lost if they were not flushed.
    pub fn crash(&self, lost_at_most: usize) {
        self.end_all_backends(false);
        let state = self.state.borrow();
        let unflushed = state.commits.iter().rev().take_while(|commit| !commit.flushed).count();
        let lost = unflushed.min(lost_at_most);
        drop(state);
        self.lose(lost, false);
    }

    /// A standby that lacks the last commits is promoted. Their ids are issued again.
    pub fn fail_over(&self, lost: usize) {
        self.end_all_backends(true);
        self.lose(lost, true);
    }

    fn lose(&self, lost: usize, ids_too: bool) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let keep = state.commits.len().saturating_sub(lost);
        let settled = |change: &&Change| {
            matches!(change, Change::Sent(..) | Change::SentAndDeleted(_) | Change::DeadLetter(_))
        };
        let lost = state.commits.split_off(keep);
        let settlements = lost.iter().flat_map(|commit| &commit.changes).filter(settled).count();
        self.world.note("commits and settlements are lost:", (lost.len(), settlements));
        add(&self.world.count.settlements_lost, settlements as u32);
        let holds = std::mem::take(&mut state.tables.holds);
        state.tables = Tables::default();
        self.promises.failed_over();
        for change in state.commits.iter().flat_map(|commit| &commit.changes) {
            match change {
                Change::Insert(event) => self.promises.committed(event),
                Change::DeadLetter(event) => self.promises.stays_dead(event),
                Change::Pause(scope) => self.promises.paused(*scope),
                Change::Resume(scope) => self.promises.resumed(*scope),
                _ => {}
            }
            state.tables.apply(change);
        }
        // The time of the next probe is not important enough to keep.
        for (topic, hold) in &mut state.tables.holds {
            if let Some(before) = holds.get(topic) {
                (hold.probe_at, hold.is_leased) = (before.probe_at, before.is_leased);
            }
        }
        if ids_too {
            state.next_id = state.tables.highest_id + 1;
        }
    }
}
