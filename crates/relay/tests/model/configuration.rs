//! What a search explores: the events that are written, the number of relays, and the possible faults.

use super::events::{EVENTS, Set};
use super::rules::Rules;
use super::state::{RELAYS, State, TOPICS};
use std::fmt;

/// The topic and the key of an event.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub topic: usize,
    pub key: char,
}

/// What may fail, and what an operator may do at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A relay crashes, loses its memory, and starts again.
    Crash,
    /// The server ends a relay's transaction, because the relay froze for too long or the connection broke.
    ClaimEnded,
    /// The server has committed, but the answer is lost.
    CommitAnswerLost,
    /// A produce request fails permanently: it is lost, refused or late. It may still arrive later.
    RequestFailed,
    /// The partition does not know the producer. It refuses the first request, which is retried, while the second one
    /// is in flight.
    FirstRequestRefused,
    /// The standby falls behind. When it is promoted, the commits that it has not received are lost.
    StandbyBehind,
    /// A topic is held. The hold is lifted at any later time.
    TopicHeld,
    /// An operator's transaction locks an unsent row until any later time.
    RowLocked,
    /// An operator sets `sent_at = NULL`.
    PutBack,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topic {}, key {}", ["A", "B"][self.topic], self.key)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    pub name: &'static str,
    pub events: &'static [Written],
    /// Events whose transaction stays open for some time. The other events are inserted and committed in one step.
    pub long: Set,
    /// Long transactions that draw the id in a statement before the insert.
    pub early: Set,
    /// Events whose long transaction may be prepared or rolled back.
    pub may_prepare: Set,
    pub may_roll_back: Set,
    pub relays: usize,
    /// The maximum number of rows in a batch.
    pub limit: usize,
    /// Whether low-water marks are in use.
    pub marks: bool,
    /// Whether a claim reads new rows until it settles, and how many ids below the highest one it searches for at most.
    pub flows: bool,
    pub gaps_max: usize,
    /// Whether the fence may pass without a transaction that stays open.
    pub excepts: bool,
    /// Whether scans raise the mark.
    pub scans: bool,
    /// Whether the list of writers may arrive late.
    pub late_answers: bool,
    /// The number of backends of a pooler. 1 means that there is no pooler.
    pub backends: usize,
    /// Whether a held topic is probed with one of its rows before the hold is lifted.
    pub probes: bool,
    /// Events that are refused before they are sent and block their keys.
    pub refused: Set,
    /// Topics that do not exist at first and are created at any time.
    pub missing_topics: Set,
    pub faults: &'static [Fault],
    pub faults_max: u8,
    pub rules: Rules,
}

impl Configuration {
    /// Two rows of one key, one relay, no faults. Other configurations are derived from it.
    pub const BASE: Configuration = Configuration {
        name: "base",
        events: &[A_K, A_K],
        long: Set::of(&[]),
        early: Set::of(&[]),
        may_prepare: Set::of(&[]),
        may_roll_back: Set::of(&[]),
        relays: 1,
        limit: EVENTS,
        marks: false,
        flows: false,
        gaps_max: EVENTS,
        excepts: false,
        scans: false,
        late_answers: false,
        backends: 1,
        probes: false,
        refused: Set::of(&[]),
        missing_topics: Set::of(&[]),
        faults: &[],
        faults_max: 0,
        rules: Rules::ALL,
    };

    pub fn initial(&self) -> State {
        assert!(self.events.len() <= EVENTS && self.relays <= RELAYS);
        let mut state = State::default();
        (0..TOPICS)
            .filter(|topic| !self.missing_topics.contains(*topic))
            .for_each(|topic| state.topics.insert(topic));
        state
    }

    pub fn may_happen(&self, fault: Fault, state: &State) -> bool {
        self.faults.contains(&fault) && state.history.faults < self.faults_max
    }

    /// Whether two events must keep their order in Kafka.
    pub fn same_place(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.events[one], self.events[other]);
        one.topic == other.topic && one.key == other.key
    }

    /// This event, and the events that must keep their order relative to it.
    pub fn of_place(&self, event: usize) -> Set {
        let mut found = Set::default();
        (0..self.events.len())
            .filter(|other| self.same_place(event, *other))
            .for_each(|other| found.insert(other));
        found
    }

    /// The events of this topic.
    pub fn of_topic(&self, topic: usize) -> Set {
        let mut found = Set::default();
        for (event, written) in self.events.iter().enumerate() {
            if written.topic == topic {
                found.insert(event);
            }
        }
        found
    }
}

/// Topic A, key k.
pub const A_K: Written = Written { topic: 0, key: 'k' };
/// Topic A, another key.
pub const A_L: Written = Written { topic: 0, key: 'l' };
/// Topic B, key k.
pub const B_K: Written = Written { topic: 1, key: 'k' };
