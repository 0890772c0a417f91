//! A state of the modeled world: one lane, one partition per topic, up to two relays.
//!
//! States are small and comparable, because millions of them are kept. Values that are no longer needed are reset, so
//! that histories with the same future lead to the same state.

use super::events::{EVENTS, Event, Queue, Set};
use super::invariants::Invariant;

pub const RELAYS: usize = 2;
pub const TOPICS: usize = 2;
/// The maximum number of queues of abandoned sessions: one per topic for each of three faults.
const ABANDONED: usize = 6;

/// The whole state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub database: Database,
    /// The database of the standby, once it has fallen behind.
    pub standby: Option<Database>,
    /// The relay whose open transaction holds the lane's lock.
    pub lane_owner: Option<u8>,
    /// The row that an operator's open transaction has locked.
    pub locked_row: Option<u8>,
    /// The id of each event that has drawn one. It is kept after the row is gone, because relays remember ids.
    pub ids: [u8; EVENTS],
    pub relays: [Relay; RELAYS],
    /// The topics that exist.
    pub topics: Set,
    /// Rows of abandoned sessions that may still be stored: one queue per partition, in order. Rows that Kafka already
    /// has are left out, because storing them again changes nothing that the model checks.
    pub abandoned: [Queue; ABANDONED],
    pub history: History,
}

/// The facts about the past that the invariants need. No step depends on them, except for the number of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// Events that Kafka has stored.
    pub published: Set,
    /// Events for which an acknowledgement has arrived. An event that an operator puts back needs another one.
    pub acknowledged: Set,
    /// Events whose commit a failover has lost.
    pub lost: Set,
    /// Events that an operator has moved to the dead letters. Later events may overtake them, even if a failover loses
    /// the move.
    pub dead: Set,
    /// How many faults have happened.
    pub faults: u8,
    /// The invariant that the last step has broken.
    pub broken: Option<Invariant>,
}

/// What a failover reverts: the tables, the sequence and the transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Database {
    pub transactions: [Transaction; EVENTS],
    /// Rows with `sent_at`.
    pub sent: Set,
    /// The number of ids that the sequence has issued.
    pub last_id: u8,
    /// Refused rows that block their keys.
    pub blocked: Set,
    /// Held topics, and the number of holds and blocks that have ended.
    pub held: Set,
    pub removals: u8,
}

/// The transaction that writes one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transaction {
    #[default]
    NotBegun,
    /// It has drawn its id in a statement of its own, and holds a RowExclusiveLock on the sequence.
    Drawn,
    /// It has inserted the row and holds a RowExclusiveLock on the table.
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
    /// A claim has failed since the last confirmed claim that covered the whole lane. Until the next such claim, an
    /// operator's replay may be mistaken for a duplicate.
    pub uncertain: bool,
    /// Without [`super::rules::Rule::FlowOfOneClaim`]: the flow of the last claim.
    pub last_flow: Option<Flow>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    #[default]
    Idle,
    /// Without [`super::rules::Rule::ReadAfterLock`]: the snapshot is taken, but the lane is not locked yet.
    Snapshot,
    Locked,
    Publishing,
    /// The server has committed, but the relay does not know it yet.
    Committed,
}

/// A claim with its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    pub phase: Phase,
    /// The server has ended the transaction. The relay learns this from its next statement.
    pub ended: bool,
    /// The claim probes a held topic with the first unsent row of this event's key.
    pub probe: Option<u8>,
    pub fates: [Fate; EVENTS],
    /// A limit cut the read off.
    pub cut: bool,
    /// The values when the read was sent: the fence that had passed, and the number of holds that had ended.
    pub fenced: u8,
    pub removals: u8,
    /// The marks were discarded, or the mark of the lane was reset, after the read was sent. The claim raises no mark.
    pub outdated: bool,
    /// An acknowledged row could not be marked, because another transaction has locked it.
    pub locked_out: bool,
    /// The claim reads new rows until it settles.
    pub flow: Option<Flow>,
}

/// Where a flow searches for new rows: above `above`, and at the ids in `gaps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    pub above: u8,
    pub gaps: Set,
    /// How many holds had ended at the first read.
    pub removals: u8,
}

/// The fate of an event in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    #[default]
    Unread,
    /// To be sent.
    Open,
    InFlight,
    Acknowledged,
    /// Stays unsent: its topic is closed, it failed, or it follows a refused row of its key.
    Unsent,
    /// Refused permanently before it was sent.
    Refused,
}

/// One idempotent producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// It has failed. No more rows are sent, and the next batch gets a new session.
    pub failed: bool,
    /// Rows in flight, for each topic.
    pub queues: [Queue; TOPICS],
    /// Topics whose lookup succeeded.
    pub open: Set,
    /// Topics that were missing in this batch.
    pub closed: Set,
    /// Topics whose partition knows the producer, because it has stored one of its rows.
    pub known: Set,
}

/// The low-water mark of the lane, and the facts that it is based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Marks {
    pub low: u8,
    /// The number of holds that had ended when `low` was raised. The mark is valid until the next hold ends.
    pub removals: u8,
    pub highest_seen: u8,
    /// With flows: the ids that reads saw committed.
    pub seen: Set,
    /// No id up to this one can still be committed, except by the excepted transactions.
    pub passed: u8,
    /// Transactions without which the fence has passed, and for each of them an id below its rows.
    pub excepted: Set,
    pub floors: [u8; EVENTS],
    pub fence: Fence,
    /// A scan whose answer is in transit.
    pub scan: Option<Scan>,
    /// The backends that the worker's and the scout's connections have used.
    pub worker_backends: Set,
    pub scout_backends: Set,
}

/// What a scan found, and the values when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scan {
    pub first_unsent: Option<u8>,
    pub fenced: u8,
    pub removals: u8,
    /// As for a claim.
    pub outdated: bool,
}

/// The progress of the fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fence {
    #[default]
    None,
    /// H is noted.
    Noted { high: u8 },
    /// The server has listed the writers, and the answer is in transit.
    Answered { high: u8, writers: Writers },
    /// Without [`super::rules::Rule::HighestBeforeWriters`]: the list came first.
    Listed { writers: Writers },
    /// Some writers of the list have not ended.
    Pending { high: u8, writers: Writers },
}

/// The holders of a RowExclusiveLock on the outbox or its sequence, by the two names that a transaction can have.
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

    /// Those of these transactions that are still in progress.
    pub fn open(&self, transactions: Set) -> Set {
        let states = [Transaction::Drawn, Transaction::Open, Transaction::Prepared];
        let open = states.into_iter().fold(Set::default(), |open, state| open.or(self.in_state(state)));
        transactions.and(open)
    }

    /// The transactions that may still commit a row. Those that have only drawn an id are visible by the lock of the
    /// sequence.
    pub fn writers(&self, lists_sequence: bool) -> Writers {
        let drawn = if lists_sequence { self.in_state(Transaction::Drawn) } else { Set::default() };
        let sessions = self.in_state(Transaction::Open).or(drawn);
        Writers { sessions, prepared: self.in_state(Transaction::Prepared) }
    }
}

impl Marks {
    /// An id below the rows of these excepted transactions.
    pub fn floor(&self, transactions: Set) -> u8 {
        transactions.iter().map(|event| self.floors[event]).min().unwrap_or(u8::MAX)
    }
}

impl Writers {
    pub fn all(self) -> Set {
        self.sessions.or(self.prepared)
    }

    /// The others.
    pub fn without(self, transactions: Set) -> Writers {
        Writers {
            sessions: self.sessions.without(transactions),
            prepared: self.prepared.without(transactions),
        }
    }

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

    /// The events that were read and stay open.
    pub fn open_rows(&self) -> Set {
        self.rows().without(self.with_fate(Fate::Acknowledged))
    }
}

impl State {
    /// These events, sorted by id.
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

    /// A session is abandoned. Its rows in flight may be stored later, or never.
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

    /// The same state with its interchangeable parts in a fixed order. Relays and abandoned queues are interchangeable.
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
