//! The brokers: topics that are created and deleted, partitions that accept or refuse requests, and what partitions
//! know about producers.

use crate::event::{SimEvent, TOPICS};
use crate::promises::Promises;
use crate::world::{World, add};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Partitions per topic.
pub const PARTITIONS: usize = 2;
/// The number of a producer's last requests that a partition recognizes as duplicates.
const RECOGNISED: usize = 5;

/// A topic and a partition of it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub topic: u8,
    pub partition: u8,
}

/// The cluster.
pub struct Broker {
    pub world: Rc<World>,
    pub promises: Rc<Promises>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    away: bool,
    topics: [Topic; TOPICS.len()],
    /// Events that must not be stored, with the last producer to which this applies. Producers with higher numbers
    /// exist in a repaired world.
    poison: BTreeMap<u32, u64>,
    producers: u64,
}

#[derive(Default)]
struct Topic {
    exists: bool,
    /// It can be described but not written to.
    denied: bool,
    /// A broken validator refuses every record.
    rejects: bool,
    /// Its events cannot become records.
    invalid: bool,
    /// It was missing after the start, or one of its partitions was blocked.
    was_away: bool,
    partitions: [Partition; PARTITIONS],
}

#[derive(Default)]
struct Partition {
    producers: BTreeMap<u64, Known>,
    unavailable_until: Option<Instant>,
}

/// What a partition knows about a producer.
struct Known {
    epoch: u32,
    next: u64,
    recent: Vec<(u64, u64)>,
}

/// The broker's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Stored now, or earlier.
    Stored,
    /// A duplicate of an old request: acknowledged without an offset.
    NoOffset,
    /// Nothing was stored. The client may send the request again.
    Retry,
    /// No answer. The request was stored or not.
    Silence,
    /// The topic does not exist.
    Missing,
    /// The client may not write to the topic.
    Denied,
    /// One of its records can never be stored.
    Invalid,
    /// One of its records is larger than the topic accepts.
    TooLarge,
    /// Requests before this one are missing.
    OutOfOrder,
    /// The producer may not send any more requests.
    Fatal,
}

impl Broker {
    pub fn new(world: &Rc<World>, promises: &Rc<Promises>) -> Rc<Broker> {
        let state = RefCell::default();
        Rc::new(Broker { world: Rc::clone(world), promises: Rc::clone(promises), state })
    }

    pub fn create_topic(&self, topic: u8) {
        let mut state = self.state.borrow_mut();
        if !state.topics[topic as usize].exists {
            self.world.note("topic is created:", TOPICS[topic as usize]);
            let was_away = self.world.begun.elapsed() > Duration::ZERO;
            state.topics[topic as usize] = Topic { exists: true, was_away, ..Topic::default() };
        }
    }

    /// Deletes it, with everything that its partitions know about producers.
    pub fn delete_topic(&self, topic: u8) {
        self.world.note("topic is deleted:", TOPICS[topic as usize]);
        add(&self.world.count.interruptions, (self.world.plan.relays * self.world.plan.workers) as u32);
        self.state.borrow_mut().topics[topic as usize] = Topic::default();
    }

    pub fn deny(&self, topic: u8, denied: bool) {
        self.world.note("topic denies writes:", (TOPICS[topic as usize], denied));
        self.state.borrow_mut().topics[topic as usize].denied = denied;
    }

    /// Sets whether the topic refuses every record.
    pub fn set_rejecting(&self, topic: u8, rejects: bool) {
        self.world.note("topic rejects everything:", (TOPICS[topic as usize], rejects));
        self.state.borrow_mut().topics[topic as usize].rejects = rejects;
    }

    /// Sets whether the events of the topic are refused before they are sent.
    pub fn set_invalid(&self, topic: u8, invalid: bool) {
        self.world.note("events are invalid:", (TOPICS[topic as usize], invalid));
        self.state.borrow_mut().topics[topic as usize].invalid = invalid;
    }

    pub fn is_invalid(&self, topic: u8) -> bool {
        self.state.borrow().topics[topic as usize].invalid
    }

    pub fn set_unavailable(&self, away: bool) {
        self.world.note("Kafka is unavailable:", away);
        self.state.borrow_mut().away = away;
        self.world.kafka_is_unavailable(away);
    }

    pub fn is_unavailable(&self) -> bool {
        self.state.borrow().away
    }

    /// Leaves a partition without a leader or without enough replicas for some time.
    pub fn block(&self, place: Place, time: Duration) {
        self.world.note("partition accepts nothing:", (place, time));
        let topic = &mut self.state.borrow_mut().topics[place.topic as usize];
        topic.was_away = true;
        topic.partitions[place.partition as usize].unavailable_until = Some(Instant::now() + time);
    }

    /// Whether this is the case now.
    pub fn is_blocked(&self, place: Place) -> bool {
        let state = self.state.borrow();
        let partition = &state.topics[place.topic as usize].partitions[place.partition as usize];
        partition.unavailable_until.is_some_and(|until| until > Instant::now())
    }

    /// Ends all faults: creates missing topics and allows writes to denied ones.
    pub fn repair(&self) {
        self.set_unavailable(false);
        for topic in 0..self.world.plan.topics as u8 {
            self.create_topic(topic);
            let topic = &mut self.state.borrow_mut().topics[topic as usize];
            (topic.denied, topic.rejects, topic.invalid) = (false, false, false);
            for partition in &mut topic.partitions {
                partition.unavailable_until = None;
            }
        }
    }

    /// Makes the broker refuse this event permanently.
    pub fn poison(&self, identity: u32) {
        self.state.borrow_mut().poison.insert(identity, u64::MAX);
    }

    /// Makes the broker accept this event from producers that connect from now on.
    pub fn repair_event(&self, identity: u32) {
        let mut state = self.state.borrow_mut();
        let last = state.producers;
        state.poison.entry(identity).and_modify(|until| *until = last);
    }

    /// The id of a new producer.
    pub fn new_producer(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.producers += 1;
        state.producers
    }

    /// Whether the topic exists.
    pub fn knows(&self, topic: u8) -> bool {
        self.state.borrow().topics[topic as usize].exists
    }

    /// Whether the partition exists and has no request of the producer.
    pub fn is_new_to(&self, producer: u64, place: Place) -> bool {
        let topic = &self.state.borrow().topics[place.topic as usize];
        topic.exists && !topic.partitions[place.partition as usize].producers.contains_key(&producer)
    }

    /// Handles a request of this producer and epoch that arrives.
    pub fn request(&self, sender: (u64, u32), place: Place, first: u64, rows: &[SimEvent]) -> Answer {
        let producer = sender.0;
        let mut state = self.state.borrow_mut();
        let State { topics, poison, .. } = &mut *state;
        let topic = &mut topics[place.topic as usize];
        let partition = &mut topic.partitions[place.partition as usize];
        let poisoned = |row: &SimEvent| poison.get(&row.identity).is_some_and(|until| producer <= *until);
        let was_away = topic.was_away;
        let mut stored = false;
        let answer = if !topic.exists {
            Answer::Missing
        } else if partition.unavailable_until.is_some_and(|until| until > Instant::now())
            || self.world.fails(self.world.plan.request_refused)
        {
            Answer::Retry
        } else if topic.denied {
            Answer::Denied
        } else if let Some(row) = rows.iter().find(|row| poisoned(row)) {
            if row.is_too_large() { Answer::TooLarge } else { Answer::Invalid }
        } else if topic.rejects {
            Answer::Invalid
        } else if self.world.fails(self.world.plan.session_fatal) {
            Answer::Fatal
        } else {
            let (answer, is_new) = partition.append(sender, first, rows.len() as u64);
            stored = is_new;
            answer
        };
        self.world
            .note("Kafka receives (producer and epoch, place, sequence)", (sender, place, first, answer));
        if let (Answer::Invalid | Answer::TooLarge, [alone]) = (answer, rows) {
            self.promises.refused_alone(alone.identity);
        }
        if stored {
            for row in rows {
                self.world
                    .note("is stored (id, event, topic, key)", (row.id, row.identity, row.topic, row.key));
                self.promises.stored(row);
                if !was_away {
                    self.promises.delivered(row);
                }
            }
        }
        answer
    }
}

impl Partition {
    /// Appends a request unless it is a duplicate. Also returns whether it was appended. A partition that does not know
    /// the producer accepts any sequence number. One that knows it begins each higher epoch at 0.
    fn append(&mut self, (producer, epoch): (u64, u32), first: u64, rows: u64) -> (Answer, bool) {
        let unknown = Known { epoch, next: first, recent: Vec::new() };
        let known = self.producers.entry(producer).or_insert(unknown);
        if known.epoch < epoch && first == 0 {
            *known = Known { epoch, next: 0, recent: Vec::new() };
        } else if known.epoch != epoch {
            return (Answer::OutOfOrder, false);
        }
        if known.recent.contains(&(first, rows)) {
            return (Answer::Stored, false);
        }
        if first != known.next {
            let answer = if first < known.next { Answer::NoOffset } else { Answer::OutOfOrder };
            return (answer, false);
        }
        known.next = first + rows;
        known.recent.push((first, rows));
        if known.recent.len() > RECOGNISED {
            known.recent.remove(0);
        }
        (Answer::Stored, true)
    }
}
