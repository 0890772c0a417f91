//! A state of the modelled world: one lane, one partition a topic, up to two relays.
//!
//! Small and comparable, for millions of them are kept. What a state has no more use for is reset, so that two
//! histories that lead to the same future lead to the same state.

use super::events::{EVENTS, Event, Queue, Set};
use super::invariants::Invariant;

pub const RELAYS: usize = 2;
pub const TOPICS: usize = 2;
/// How many queues of abandoned sessions there may be: one a topic for each of three faults.
const ABANDONED: usize = 6;

/// Everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub database: Database,
    /// What the standby has, once it has fallen behind.
    pub standby: Option<Database>,
    /// The relay whose open transaction holds the lane's lock.
    pub lane_owner: Option<u8>,
    /// The row that an operator's open transaction has locked.
    pub locked_row: Option<u8>,
    /// The id of each event that has drawn one. It outlives the row: relays remember ids.
    pub ids: [u8; EVENTS],
    pub relays: [Relay; RELAYS],
    /// The topics that exist.
    pub topics: Set,
    /// What sessions that were given up may still get stored, a queue for each partition, in order. Events that Kafka
    /// has already are left out: to store them again changes nothing that is looked at.
    pub abandoned: [Queue; ABANDONED],
    pub history: History,
}

/// What the invariants need to know of the past. No step depends on it, but that faults are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// Events that Kafka has stored.
    pub published: Set,
    /// Events of which an acknowledgement came in; an event that an operator puts back needs another one.
    pub acknowledged: Set,
    /// Events whose commit a failover has lost.
    pub lost: Set,
    /// Events that an operator has moved to the dead letters. Later ones may pass them, even if a failover loses the move.
    pub dead: Set,
    /// How many faults have happened.
    pub faults: u8,
    /// The invariant that the last step broke.
    pub broken: Option<Invariant>,
}

/// What a failover puts back: the tables, the sequence, and the transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Database {
    pub transactions: [Transaction; EVENTS],
    /// Rows with `sent_at`.
    pub sent: Set,
    /// How many ids the sequence has handed out.
    pub last_id: u8,
    /// Rows that were refused and block their keys.
    pub blocked: Set,
    /// Topics that are held, and how often a hold or a block has ended.
    pub held: Set,
    pub removals: u8,
}

/// The transaction that writes one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transaction {
    #[default]
    NotBegun,
    /// It has drawn its id and holds RowExclusiveLock.
    Open,
    Prepared,
    Committed,
    /// Rolled back, or lost by a failover.
    Gone,
}

/// One relay process: a worker and a scout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Relay {
    pub claim: Claim,
    pub session: Session,
    pub marks: Marks,
    /// Acknowledged events whose settlement is not confirmed.
    pub acknowledged: Set,
    /// A claim has failed since one was last confirmed that covered the lane to its end. Until there is one, an
    /// operator's replay may be taken for a repetition.
    pub doubtful: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    #[default]
    Idle,
    /// Without [`super::rules::Rule::ReadAfterLock`]: the snapshot is taken, the lane not yet locked.
    Snapshot,
    Locked,
    Publishing,
    /// The server has committed; the relay has not heard of it.
    Committed,
}

/// A claim with its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    pub phase: Phase,
    /// The server has ended the transaction; the relay learns it from its next statement.
    pub ended: bool,
    /// It probes a held topic with the first unsent row of this event's key.
    pub probe: Option<u8>,
    pub fates: [Fate; EVENTS],
    /// A limit cut the read off.
    pub cut: bool,
    /// What the read started with: the fence that had passed, and how many holds it saw ended.
    pub fenced: u8,
    pub removals: u8,
    /// The marks have been forgotten, or the lane's was reset, since the read was sent: it raises nothing.
    pub outdated: bool,
    /// Some acknowledged row could not be marked, since somebody else has locked it.
    pub locked_out: bool,
}

/// What became of an event in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    #[default]
    Unread,
    /// To be handed over.
    Open,
    InFlight,
    Acknowledged,
    /// It stays unsent: its topic is closed, it failed, or it follows a refused row of its key.
    Left,
    /// Refused for good before it was sent.
    Refused,
}

/// One idempotent producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// It has failed: nothing more is handed over, and the next batch gets a new one.
    pub failed: bool,
    /// Handed over and not acknowledged, for each topic.
    pub queues: [Queue; TOPICS],
    /// Topics that were found when they were looked up.
    pub open: Set,
    /// Topics that were missing in this batch.
    pub closed: Set,
    /// Topics whose partition knows the producer, since it has stored a row of it.
    pub known: Set,
}

/// The low-water mark of the lane, with what it rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Marks {
    pub low: u8,
    /// How many holds had ended when `low` was raised: it is valid until the next one ends.
    pub removals: u8,
    pub highest_seen: u8,
    /// No id up to this one can still be committed.
    pub passed: u8,
    pub fence: Fence,
    /// The backends that the worker's and the scout's connections have met.
    pub worker_met: Set,
    pub scout_met: Set,
}

/// Where the fence under way stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fence {
    #[default]
    None,
    /// H is noted.
    Noted { high: u8 },
    /// The server has listed the writers, and the answer is on its way.
    Answered { high: u8, writers: Writers },
    /// Without [`super::rules::Rule::HighestBeforeWriters`]: the list came first.
    Listed { writers: Writers },
    /// Some writers of the list have not ended.
    Pending { high: u8, writers: Writers },
}

/// Holders of RowExclusiveLock on the outbox, by the two names that a transaction can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Writers {
    pub sessions: Set,
    pub prepared: Set,
}

impl Database {
    /// Committed and unsent.
    pub fn unsent(&self) -> Set {
        self.in_state(Transaction::Committed).without(self.sent)
    }

    pub fn in_state(&self, state: Transaction) -> Set {
        let mut found = Set::default();
        for (event, transaction) in self.transactions.iter().enumerate() {
            if *transaction == state {
                found.insert(event);
            }
        }
        found
    }

    /// Who may still commit a row.
    pub fn writers(&self) -> Writers {
        Writers { sessions: self.in_state(Transaction::Open), prepared: self.in_state(Transaction::Prepared) }
    }
}

impl Writers {
    pub fn is_empty(self) -> bool {
        self.sessions.is_empty() && self.prepared.is_empty()
    }
}

impl Claim {
    pub fn with_fate(&self, fate: Fate) -> Set {
        let mut found = Set::default();
        for (event, its) in self.fates.iter().enumerate() {
            if *its == fate {
                found.insert(event);
            }
        }
        found
    }

    /// The events that were read.
    pub fn rows(&self) -> Set {
        let mut found = Set::default();
        for (event, fate) in self.fates.iter().enumerate() {
            if *fate != Fate::Unread {
                found.insert(event);
            }
        }
        found
    }

    /// The events that were read and stay unsent.
    pub fn open_rows(&self) -> Set {
        self.rows().without(self.with_fate(Fate::Acknowledged))
    }
}

impl State {
    /// These events by id.
    pub fn by_id(&self, events: Set) -> impl Iterator<Item = Event> + use<> {
        let mut ordered = [0; EVENTS];
        let mut len = 0;
        for event in events.iter() {
            let mut at = len;
            while at > 0 && self.ids[ordered[at - 1]] > self.ids[event] {
                ordered[at] = ordered[at - 1];
                at -= 1;
            }
            ordered[at] = event;
            len += 1;
        }
        ordered.into_iter().take(len)
    }

    /// A session is given up: what it has under way may be stored later, or never.
    pub fn abandon(&mut self, relay: usize) {
        let session = std::mem::take(&mut self.relays[relay].session);
        for queue in session.queues {
            self.abandon_queue(queue);
        }
    }

    pub fn abandon_queue(&mut self, queue: Queue) {
        let queue = queue.without(self.history.published);
        if !queue.is_empty() {
            let free = self.abandoned.iter().position(|queue| queue.is_empty());
            self.abandoned[free.expect("a queue for each fault and topic")] = queue;
        }
    }

    /// The same state with its interchangeable parts in one order: the relays are alike, and so are abandoned queues.
    pub fn canonical(mut self, relays: usize) -> State {
        self.abandoned.sort_unstable_by(|one, other| other.cmp(one));
        if relays < RELAYS {
            return self;
        }
        if self.relays[1] < self.relays[0] || (self.relays[0] == self.relays[1] && self.lane_owner == Some(1))
        {
            self.relays.swap(0, 1);
            self.lane_owner = self.lane_owner.map(|owner| 1 - owner);
        }
        self
    }
}
