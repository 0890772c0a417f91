//! The brokers: topics that come and go, partitions that take requests or do not, and what they know of producers.

use crate::event::{SimEvent, TOPICS};
use crate::promises::Promises;
use crate::world::{World, add};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Partitions a topic.
pub const PARTITIONS: usize = 2;
/// So many of a producer's last requests does a partition recognise when they come again.
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
    /// Events that no request may hold, by producers up to this one; later ones belong to a mended world.
    poison: BTreeMap<u32, u64>,
    producers: u64,
}

#[derive(Default)]
struct Topic {
    exists: bool,
    /// It can be described and not written to.
    denied: bool,
    /// A broken validator refuses whatever comes.
    rejects: bool,
    partitions: [Partition; PARTITIONS],
}

#[derive(Default)]
struct Partition {
    producers: BTreeMap<u64, Known>,
    unavailable_until: Option<Instant>,
}

/// What a partition knows of a producer.
struct Known {
    next: u64,
    recent: Vec<(u64, u64)>,
}

/// What the broker says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Stored, now or when it came before.
    Stored,
    /// Its sequence numbers are known, and it is not: acknowledged without an offset.
    NoOffset,
    /// Nothing was stored, and it may be sent again.
    Retry,
    /// It was handled or not, and nobody says so.
    Silence,
    /// No topic of that name.
    Missing,
    /// The topic may not be written to.
    Denied,
    /// A record of it can never be stored.
    Invalid,
    /// A record of it is larger than the topic takes.
    TooLarge,
    /// Requests before it are missing.
    OutOfOrder,
    /// The producer may send nothing more.
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
            state.topics[topic as usize] = Topic { exists: true, ..Topic::default() };
        }
    }

    /// With all that its partitions knew of producers.
    pub fn delete_topic(&self, topic: u8) {
        self.world.note("topic is deleted:", TOPICS[topic as usize]);
        add(&self.world.count.interruptions, (self.world.plan.relays * self.world.plan.workers) as u32);
        self.state.borrow_mut().topics[topic as usize] = Topic::default();
    }

    pub fn deny(&self, topic: u8, denied: bool) {
        self.world.note("topic may not be written to:", (TOPICS[topic as usize], denied));
        self.state.borrow_mut().topics[topic as usize].denied = denied;
    }

    /// The topic refuses whatever comes, or does so no more.
    pub fn set_rejecting(&self, topic: u8, rejects: bool) {
        self.world.note("topic rejects everything:", (TOPICS[topic as usize], rejects));
        self.state.borrow_mut().topics[topic as usize].rejects = rejects;
    }

    pub fn set_away(&self, away: bool) {
        self.world.note("Kafka is away:", away);
        self.state.borrow_mut().away = away;
        self.world.kafka_is_away(away);
    }

    pub fn is_away(&self) -> bool {
        self.state.borrow().away
    }

    /// A partition has no leader, or not enough replicas, for a while.
    pub fn block(&self, place: Place, time: Duration) {
        self.world.note("partition takes nothing:", (place, time));
        let partition = &mut self.state.borrow_mut().topics[place.topic as usize].partitions;
        partition[place.partition as usize].unavailable_until = Some(Instant::now() + time);
    }

    /// It is so now.
    pub fn is_blocked(&self, place: Place) -> bool {
        let state = self.state.borrow();
        let partition = &state.topics[place.topic as usize].partitions[place.partition as usize];
        partition.unavailable_until.is_some_and(|until| until > Instant::now())
    }

    /// Everything works: what is missing comes, what is denied is allowed.
    pub fn mend(&self) {
        self.set_away(false);
        for topic in 0..self.world.plan.topics as u8 {
            self.create_topic(topic);
            let topic = &mut self.state.borrow_mut().topics[topic as usize];
            (topic.denied, topic.rejects) = (false, false);
            for partition in &mut topic.partitions {
                partition.unavailable_until = None;
            }
        }
    }

    /// The broker never stores this event.
    pub fn poison(&self, identity: u32) {
        self.state.borrow_mut().poison.insert(identity, u64::MAX);
    }

    /// From now on it does, from whoever connects from now on.
    pub fn mend_event(&self, identity: u32) {
        let mut state = self.state.borrow_mut();
        let last = state.producers;
        state.poison.entry(identity).and_modify(|until| *until = last);
    }

    /// A new producer's id.
    pub fn new_producer(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.producers += 1;
        state.producers
    }

    /// Whether the topic exists.
    pub fn knows(&self, topic: u8) -> bool {
        self.state.borrow().topics[topic as usize].exists
    }

    /// Whether a partition was made anew under a producer that has sent to the old one.
    pub fn is_new_to(&self, producer: u64, place: Place, first: u64) -> bool {
        let state = self.state.borrow();
        let topic = &state.topics[place.topic as usize];
        let known = topic.partitions[place.partition as usize].producers.contains_key(&producer);
        topic.exists && first > 0 && !known
    }

    /// A request arrives.
    pub fn request(&self, producer: u64, place: Place, first: u64, rows: &[SimEvent]) -> Answer {
        let mut state = self.state.borrow_mut();
        let State { topics, poison, .. } = &mut *state;
        let topic = &mut topics[place.topic as usize];
        let partition = &mut topic.partitions[place.partition as usize];
        let poisoned = |row: &SimEvent| poison.get(&row.identity).is_some_and(|until| producer <= *until);
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
            let (answer, is_new) = partition.append(producer, first, rows.len() as u64);
            stored = is_new;
            answer
        };
        self.world.note("Kafka is sent (producer, place, sequence)", (producer, place, first, answer));
        if let (Answer::Invalid | Answer::TooLarge, [alone]) = (answer, rows) {
            self.promises.refused_alone(alone.identity);
        }
        if stored {
            for row in rows {
                self.world
                    .note("is stored (id, event, topic, key)", (row.id, row.identity, row.topic, row.key));
                self.promises.stored(row);
            }
        }
        answer
    }
}

impl Partition {
    /// Appends a request, unless it is known; says whether it did. A partition that does not know the producer takes
    /// any sequence number.
    fn append(&mut self, producer: u64, first: u64, rows: u64) -> (Answer, bool) {
        let known = self.producers.entry(producer).or_insert(Known { next: first, recent: Vec::new() });
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
