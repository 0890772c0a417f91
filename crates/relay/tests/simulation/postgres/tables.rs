//! The committed state, computed from the list of commits. A failover is a shorter list.

use crate::event::SimEvent;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// The scope of a pause.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Everything,
    Topic(u8),
    /// A topic or an aggregate type, and a key.
    Key(u8, u8),
}

impl Scope {
    /// Whether this event is paused.
    pub fn covers(self, event: &SimEvent) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Topic(topic) => topic == event.topic,
            Scope::Key(of, key) => event.has_key(of, key),
        }
    }
}

/// One change to the tables.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Insert(SimEvent),
    /// Settled as sent.
    Sent(SimEvent, Instant),
    /// Settled as sent, with `on_sent = "delete"`.
    SentAndDeleted(SimEvent),
    PutBack(SimEvent),
    /// A replay invalidates the marks: the trigger counts a DELETE of no holds.
    MarksInvalidated,
    Reaped(SimEvent),
    DeadLetter(SimEvent),
    /// The dead letter is removed, because its event is inserted again.
    Requeued(SimEvent),
    /// A topic, the reason, and the key that caused the hold.
    Hold(u8, &'static str, Option<u8>),
    Release(u8),
    /// The key of this row is blocked.
    Block(SimEvent),
    Unblock(SimEvent),
    Pause(Scope),
    Resume(Scope),
    /// TRUNCATE ... RESTART IDENTITY.
    Truncate,
    /// A prepared transaction that would insert this event.
    Prepared(u64, SimEvent),
    /// A prepared transaction has ended. The rows that it inserted follow.
    EndPrepared(u64),
}

/// A row of the outbox.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub event: SimEvent,
    pub sent_at: Option<Instant>,
}

/// A held topic.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub probe_at: Instant,
    /// A relay is probing it.
    pub is_leased: bool,
    pub reason: &'static str,
    pub key: Option<u8>,
}

/// The committed state.
#[derive(Default)]
pub struct Tables {
    pub rows: BTreeMap<i64, Row>,
    pub dead: BTreeMap<u32, SimEvent>,
    pub holds: BTreeMap<u8, Hold>,
    /// Rows that block their keys.
    pub blocked: BTreeMap<i64, SimEvent>,
    pub paused: BTreeSet<Scope>,
    /// The number of changes to the set of holds, blocked keys and pauses, and the number of those that ended one.
    pub hold_version: i64,
    pub removals: i64,
    /// The file of the table.
    pub file: i64,
    pub prepared: BTreeMap<u64, Vec<SimEvent>>,
    pub highest_id: i64,
}

impl Tables {
    /// Applies one change. Holds are counted in the same way as by the trigger.
    pub fn apply(&mut self, change: &Change) {
        match *change {
            Change::Insert(event) => {
                self.highest_id = self.highest_id.max(event.id);
                self.rows.insert(event.id, Row { event, sent_at: None });
            }
            Change::Sent(event, at) => self.set_sent_at(event.id, Some(at)),
            Change::PutBack(event) => self.set_sent_at(event.id, None),
            Change::MarksInvalidated => self.count_removal(),
            Change::SentAndDeleted(event) | Change::Reaped(event) => _ = self.rows.remove(&event.id),
            Change::DeadLetter(event) => {
                self.rows.remove(&event.id);
                self.dead.insert(event.identity, event);
            }
            Change::Requeued(event) => _ = self.dead.remove(&event.identity),
            Change::Hold(topic, reason, key) => {
                self.holds.entry(topic).or_insert(Hold {
                    probe_at: Instant::now(),
                    is_leased: false,
                    reason,
                    key,
                });
                self.hold_version += 1;
            }
            Change::Block(event) => {
                self.blocked.insert(event.id, event);
                self.hold_version += 1;
            }
            Change::Unblock(event) => {
                self.blocked.remove(&event.id);
                self.count_removal();
            }
            Change::Pause(scope) => {
                self.paused.insert(scope);
                self.hold_version += 1;
            }
            Change::Resume(scope) => {
                self.paused.remove(&scope);
                self.count_removal();
            }
            Change::Release(topic) => {
                self.holds.remove(&topic);
                self.count_removal();
            }
            Change::Truncate => {
                self.rows.clear();
                self.highest_id = 0;
                self.file += 1;
            }
            Change::Prepared(name, event) => {
                self.highest_id = self.highest_id.max(event.id);
                self.prepared.entry(name).or_default().push(event);
            }
            Change::EndPrepared(name) => _ = self.prepared.remove(&name),
        }
    }

    fn count_removal(&mut self) {
        self.hold_version += 1;
        self.removals += 1;
    }

    /// The unsent rows whose keys are not blocked, by id.
    pub fn waiting(&self) -> impl Iterator<Item = SimEvent> {
        let unsent = self.rows.values().filter(|row| row.sent_at.is_none()).map(|row| row.event);
        unsent.filter(|event| !self.is_blocked(event))
    }

    /// Whether this whole topic is paused.
    pub fn is_paused(&self, topic: u8) -> bool {
        self.paused.contains(&Scope::Everything) || self.paused.contains(&Scope::Topic(topic))
    }

    /// Whether a row's key is blocked.
    pub fn is_blocked(&self, event: &SimEvent) -> bool {
        self.blocked.values().any(|blocked| event.has_key_of(blocked))
    }

    fn set_sent_at(&mut self, id: i64, at: Option<Instant>) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.sent_at = at;
        }
    }
}
