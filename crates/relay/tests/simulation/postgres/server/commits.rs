//! Commits, and how they are reported to the judge of the promises.

use super::{Commit, Server};
use crate::event::{SimEvent, TOPICS};
use crate::plan::Sabotage;
use crate::postgres::tables::{Change, Tables};
use crate::world::add;
use relay::lanes::LANES;
use relay::outbox::Event;

impl Server {
    /// PREPARE TRANSACTION. The lock continues under another name.
    pub fn prepare(&self, name: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(transaction) = state.transactions.get_mut(&name) else { return false };
        for change in &mut transaction.changes {
            if let Change::Insert(event) = *change {
                *change = Change::Prepared(name, event);
            }
        }
        drop(state);
        self.commit(name, true)
    }

    /// COMMIT PREPARED, or ROLLBACK PREPARED.
    pub fn end_prepared(&self, name: u64, commits: bool) {
        let Some(events) = self.state.borrow().tables.prepared.get(&name).cloned() else { return };
        let end = self.begin(None);
        self.change(end, Change::EndPrepared(name));
        for event in events.into_iter().filter(|_| commits) {
            self.change(end, Change::Insert(event));
        }
        self.commit(end, true);
    }

    /// COMMIT. False if the transaction had ended before.
    pub fn commit(&self, name: u64, flushed: bool) -> bool {
        let mut state = self.state.borrow_mut();
        let lanes: Vec<usize> = (0..LANES).filter(|lane| state.lanes[*lane] == name).collect();
        let Some(transaction) = state.end(name) else { return false };
        for change in &transaction.changes {
            self.check_claim(change, &lanes);
            self.report(change, &state.tables);
            state.tables.apply(change);
        }
        if !transaction.changes.is_empty() {
            state.commits.push(Commit { changes: transaction.changes, flushed });
        }
        drop(state);
        self.unlocked.notify_waiters();
        self.world.progress.notify_waiters();
        true
    }

    /// Commits changes immediately.
    pub fn commit_at_once(&self, changes: &[Change], flushed: bool) {
        let name = self.begin(None);
        for change in changes {
            self.change(name, *change);
        }
        self.commit(name, flushed);
    }

    /// Only the transaction that has locked a lane may settle its rows.
    fn check_claim(&self, change: &Change, lanes: &[usize]) {
        if let Change::Sent(event, _) | Change::SentAndDeleted(event) | Change::DeadLetter(event) = change
            && !lanes.contains(&event.lane().index())
            && !self.world.breaks(Sabotage::NoLaneLock)
        {
            self.world.violate(|| format!("{event:?} was settled without the lock of its lane"));
        }
    }

    fn report(&self, change: &Change, tables: &Tables) {
        let note = |what, event: &SimEvent| {
            self.world.note(what, (event.id, event.identity, event.topic, event.key));
        };
        match change {
            Change::Insert(event) => {
                note("commits (id, event, topic, key)", event);
                self.promises.committed(event);
                let count = &self.world.count;
                add(&count.late, (event.id < count.highest.get()).into());
                count.highest.set(count.highest.get().max(event.id));
            }
            Change::Sent(event, _) | Change::SentAndDeleted(event) => {
                note("is settled (id, event, topic, key)", event);
                self.promises.settled(event);
            }
            Change::PutBack(event) => {
                note("is put back (id, event, topic, key)", event);
                self.promises.put_back(event);
                add(&self.world.count.late, 1);
            }
            Change::Reaped(event) => {
                note("is reaped (id, event, topic, key)", event);
                let row = tables.rows.get(&event.id);
                self.promises.reaped(event, row.is_some_and(|row| row.sent_at.is_none()));
            }
            Change::DeadLetter(event) => {
                note("is a dead letter (id, event, topic, key)", event);
                self.promises.died(event);
            }
            Change::Hold(topic, reason, key) => {
                self.world.note("topic is held", (TOPICS[*topic as usize], reason, key));
            }
            Change::Block(event) => {
                note("blocks its key (id, event, topic, key)", event);
                self.promises.rejected(event);
            }
            Change::Unblock(event) => note("no longer blocks its key (id, event, topic, key)", event),
            Change::Pause(scope) => {
                self.world.note("is paused:", scope);
                self.promises.paused(*scope);
            }
            Change::Resume(scope) => {
                self.world.note("is resumed:", scope);
                self.promises.resumed(*scope);
            }
            Change::Release(topic) => self.world.note("topic is released", TOPICS[*topic as usize]),
            Change::Truncate => self.world.note("the outbox is truncated, ids start again at", 1),
            Change::MarksInvalidated => self.world.note("a replay invalidates the marks", ()),
            Change::Requeued(_) | Change::Prepared(..) | Change::EndPrepared(_) => {}
        }
    }
}
