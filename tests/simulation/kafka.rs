//! The model of Kafka: idempotent producers over a network that delays, refuses, loses answers and delivers late.

use super::postgres::SimEvent;
use super::world::{Sabotage, World};
use outbox_relay::relay::event::Event;
use outbox_relay::relay::failure::{Failure, FailureKind};
use outbox_relay::relay::publisher::{Judged, Producer, Publisher, Refusal, Report};
use outbox_relay::relay::reason::{
    INVALID_RECORD, OTHER_RECORD_REFUSED, PRODUCER_STATE_LOST, Reason, UNKNOWN_TOPIC,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use uuid::Uuid;

/// Partitions a topic.
pub const PARTITIONS: u32 = 3;
/// Requests of one producer that may be under way to a partition at once.
const WINDOW: usize = 2;

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub topic: String,
    pub key: String,
    pub event_id: Uuid,
}

/// The cluster's state.
pub struct Broker {
    world: Rc<World>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    up: bool,
    topics: BTreeSet<String>,
    log: Vec<Stored>,
    stored: HashSet<Uuid>,
    /// The next sequence number of a producer in a partition, for producers that the partition knows.
    sequences: HashMap<(u64, String, u32), u64>,
    poison: HashSet<Uuid>,
    producers: u64,
}

/// What the broker says to a request.
enum Answer {
    Stored,
    /// It was stored before: acknowledged without an offset.
    Repeated,
    Retry,
    Refused(&'static Reason),
}

impl Broker {
    pub fn new(world: Rc<World>) -> Rc<Broker> {
        Rc::new(Broker { world, state: RefCell::new(State { up: true, ..State::default() }) })
    }

    pub fn create_topic(&self, topic: &str) {
        self.world.note(|| format!("{topic} is created"));
        self.state.borrow_mut().topics.insert(topic.to_owned());
    }

    pub fn set_up(&self, up: bool) {
        self.world.note(|| format!("Kafka is {}", if up { "back" } else { "away" }));
        self.state.borrow_mut().up = up;
    }

    /// The broker will never store this event.
    pub fn poison(&self, event_id: Uuid) {
        self.state.borrow_mut().poison.insert(event_id);
    }

    fn refuses(&self, event: &SimEvent) -> bool {
        self.state.borrow().poison.contains(&event.event_id)
    }

    pub fn has(&self, event_id: Uuid) -> bool {
        self.state.borrow().stored.contains(&event_id)
    }

    /// Everything stored, in order. The order between partitions means nothing.
    pub fn log(&self) -> Vec<Stored> {
        self.state.borrow().log.clone()
    }

    fn request(&self, to: &Target, first: u64, events: &[SimEvent]) -> Answer {
        let mut state = self.state.borrow_mut();
        if !state.up || self.world.happens(self.world.faults.get().request_refused) {
            self.world.note(|| format!("{to:?} {first}.. is refused for now"));
            return Answer::Retry;
        }
        if !state.topics.contains(&to.topic) {
            return Answer::Refused(&UNKNOWN_TOPIC);
        }
        if events.iter().any(|event| state.poison.contains(&event.event_id)) {
            return Answer::Refused(&INVALID_RECORD);
        }
        let known = (to.producer, to.topic.clone(), to.partition);
        // A partition that does not know the producer takes any sequence number.
        let expected = state.sequences.get(&known).copied().unwrap_or(first);
        if first < expected {
            return Answer::Repeated;
        }
        if first > expected {
            return Answer::Refused(&PRODUCER_STATE_LOST);
        }
        state.sequences.insert(known, first + events.len() as u64);
        for event in events {
            self.world.note(|| format!("{to:?} stores id {} of {}", event.id, event.key));
            state.stored.insert(event.event_id);
            let stored = Stored { topic: to.topic.clone(), key: event.key.clone(), event_id: event.event_id };
            state.log.push(stored);
        }
        Answer::Stored
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Target {
    producer: u64,
    topic: String,
    partition: u32,
}

/// A relay's way to the cluster.
pub struct SimCluster {
    pub broker: Rc<Broker>,
    pub relay: usize,
}

impl SimCluster {
    async fn round_trip(&self) -> Result<(), Failure> {
        self.broker.world.pass(5).await;
        self.broker.world.thawed(self.relay).await;
        if self.broker.state.borrow().up {
            return Ok(());
        }
        sleep(Duration::from_secs(5)).await;
        Err(Failure { kind: FailureKind::Cluster, reason: "brokers-down", error: "away".to_owned() })
    }
}

impl Publisher for SimCluster {
    type Producer = SimProducer;

    async fn open(&self) -> Result<SimProducer, Failure> {
        self.broker.world.pass(5).await;
        let mut state = self.broker.state.borrow_mut();
        state.producers += 1;
        Ok(SimProducer {
            broker: Rc::clone(&self.broker),
            relay: self.relay,
            id: state.producers,
            shared: Rc::new(Shared::default()),
        })
    }

    async fn judge<E: Event>(&self, topic: &str, partition: u32, rows: &[&E]) -> Judged {
        let mut alone = match self.open().await {
            Ok(producer) => producer,
            Err(failure) => return Judged { acknowledged: 0, failure: Some(failure) },
        };
        let mut outcomes = vec![Err(Failure::unknown("no report")); rows.len()];
        for part in [0..1, 1..rows.len()] {
            for index in part {
                if let Err(Refusal::Session(failure)) =
                    alone.send(index as u32, topic, partition, rows[index])
                {
                    outcomes[index] = Err(failure);
                    break;
                }
            }
            alone.drained().await;
            let mut reports = Vec::new();
            alone.drain(&mut reports);
            for Report { index, outcome } in reports {
                outcomes[index as usize] = outcome;
            }
            if outcomes[0].is_err() {
                break;
            }
        }
        let acknowledged = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
        Judged { acknowledged, failure: outcomes.into_iter().nth(acknowledged).and_then(Result::err) }
    }

    async fn probe(&self) -> Result<(), Failure> {
        self.round_trip().await
    }

    async fn probe_topic(&self, topic: &str) -> Result<u32, Failure> {
        self.round_trip().await?;
        missing(&self.broker, topic).map_or(Ok(PARTITIONS), Err)
    }
}

fn missing(broker: &Broker, topic: &str) -> Option<Failure> {
    let known = broker.state.borrow().topics.contains(topic);
    (!known).then(|| Failure { kind: FailureKind::Topic, reason: "unknown-topic", error: topic.to_owned() })
}

/// An idempotent, gapless producer.
pub struct SimProducer {
    broker: Rc<Broker>,
    relay: usize,
    id: u64,
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: RefCell<Sending>,
    wake: Notify,
}

#[derive(Default)]
struct Sending {
    partitions: BTreeMap<Target, Partition>,
    reports: Vec<Report>,
    in_flight: usize,
    failed: bool,
    fatal: bool,
    abandoned: bool,
}

#[derive(Default)]
struct Partition {
    queue: VecDeque<(u32, SimEvent)>,
    /// Requests under way: first sequence number, rows.
    window: VecDeque<(u64, Vec<(u32, SimEvent)>)>,
    next: u64,
    running: bool,
}

impl Shared {
    fn report(&self, index: u32, outcome: Result<(), Failure>) {
        let mut state = self.state.borrow_mut();
        state.failed |= outcome.is_err();
        state.in_flight -= 1;
        state.reports.push(Report { index, outcome });
        drop(state);
        self.wake.notify_waiters();
    }

    async fn wait(&self, done: impl Fn(&Sending) -> bool) {
        loop {
            let changed = self.wake.notified();
            if done(&self.state.borrow()) {
                return;
            }
            changed.await;
        }
    }
}

impl Producer for SimProducer {
    async fn lookup(&mut self, topic: &str) -> Result<u32, Failure> {
        SimCluster { broker: Rc::clone(&self.broker), relay: self.relay }.round_trip().await?;
        missing(&self.broker, topic).map_or(Ok(PARTITIONS), Err)
    }

    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), Refusal> {
        let target = Target { producer: self.id, topic: topic.to_owned(), partition };
        let event = SimEvent {
            id: event.id(),
            event_id: event.event_id(),
            aggregate_type: String::from_utf8_lossy(event.aggregate_type()).into_owned(),
            key: String::from_utf8_lossy(event.key()).into_owned(),
        };
        let mut state = self.shared.state.borrow_mut();
        if state.fatal {
            return Err(Refusal::Session(Failure::unknown("the producer is fatal")));
        }
        state.in_flight += 1;
        let lane = state.partitions.entry(target.clone()).or_default();
        lane.queue.push_back((index, event));
        if !lane.running {
            lane.running = true;
            let sender = sender(Rc::clone(&self.broker), Rc::clone(&self.shared), target);
            tokio::task::spawn_local(sender);
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.shared.state.borrow().in_flight
    }

    fn has_failed(&self) -> bool {
        self.shared.state.borrow().failed
    }

    fn refusal(&self) -> Option<Failure> {
        None
    }

    fn drain(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.shared.state.borrow_mut().reports);
    }

    async fn quiet(&mut self, any: bool) {
        self.shared
            .wait(|state| state.in_flight == 0 || state.failed || (any && !state.reports.is_empty()))
            .await;
    }

    fn stop(&mut self) {
        if !self.broker.world.breaks(Sabotage::GapsAfterRefusal) {
            purge(&self.broker, &self.shared);
        }
    }

    async fn drained(&mut self) {
        self.shared.wait(|state| state.in_flight == 0).await;
    }

    fn abandon(self) {}
}

/// A relay that dies takes its queues with it; what is under way stays under way.
impl Drop for SimProducer {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().abandoned = true;
        purge(&self.broker, &self.shared);
    }
}

fn purge(broker: &Broker, shared: &Shared) {
    let purged: Vec<u32> = {
        let mut state = shared.state.borrow_mut();
        state.fatal = true;
        state
            .partitions
            .values_mut()
            .flat_map(|partition| partition.queue.drain(..))
            .map(|(i, _)| i)
            .collect()
    };
    for index in purged {
        let counts = broker.world.breaks(Sabotage::PurgedCountsAsSent);
        shared.report(index, if counts { Ok(()) } else { Err(Failure::unknown("purged")) });
    }
}

/// Sends one partition's queue: up to two requests under way, repeated in order until each is acknowledged.
async fn sender(broker: Rc<Broker>, shared: Rc<Shared>, to: Target) {
    let world = Rc::clone(&broker.world);
    let mut rounds_left_when_abandoned = world.below(3);
    loop {
        {
            let mut state = shared.state.borrow_mut();
            let partition = state.partitions.get_mut(&to).unwrap();
            while partition.window.len() < WINDOW && !partition.queue.is_empty() {
                let size = partition.queue.len().min(1 + world.below(4) as usize);
                let rows: Vec<_> = partition.queue.drain(..size).collect();
                partition.window.push_back((partition.next, rows));
                partition.next += size as u64;
            }
            if partition.window.is_empty() {
                partition.running = false;
                return;
            }
            if state.abandoned {
                // Its requests are in the network: they may arrive late, once more, or never.
                if rounds_left_when_abandoned == 0 {
                    return;
                }
                rounds_left_when_abandoned -= 1;
            }
        }
        if shared.state.borrow().abandoned {
            world.pass(30_000).await;
        } else {
            world.pass(20).await;
        }
        if let Some(failure) = round(&broker, &shared, &to).await {
            fail(&broker, &shared, &to, &failure);
            if !broker.world.breaks(Sabotage::GapsAfterRefusal) {
                return;
            }
        }
    }
}

/// Every request of the window arrives once, in order. Returns what makes the producer fatal, if anything does.
async fn round(broker: &Broker, shared: &Shared, to: &Target) -> Option<Failure> {
    let window = shared.state.borrow().partitions[to].window.clone();
    for (first, rows) in window {
        let events: Vec<SimEvent> = rows.iter().map(|(_, event)| event.clone()).collect();
        let answer = broker.request(to, first, &events);
        if broker.world.happens(broker.world.faults.get().request_answer_lost) {
            continue;
        }
        broker.world.pass(3).await;
        let outcome = match answer {
            Answer::Retry => continue,
            Answer::Stored => Ok(()),
            Answer::Repeated => Err(Failure::unknown("acknowledged without an offset")),
            Answer::Refused(why) => return Some(why.failure("refused")),
        };
        shared.state.borrow_mut().partitions.get_mut(to).unwrap().window.retain(|(at, _)| *at != first);
        for (index, _) in rows {
            shared.report(index, outcome.clone());
        }
    }
    None
}

/// The first request under way was refused for good: nothing that this producer has left is sent.
fn fail(broker: &Broker, shared: &Shared, to: &Target, failure: &Failure) {
    let window = {
        let mut state = shared.state.borrow_mut();
        std::mem::take(&mut state.partitions.get_mut(to).unwrap().window)
    };
    for (place, (first, rows)) in window.into_iter().enumerate() {
        if broker.world.breaks(Sabotage::GapsAfterRefusal) {
            let known = (to.producer, to.topic.clone(), to.partition);
            broker.state.borrow_mut().sequences.insert(known, first + rows.len() as u64);
        }
        for (index, event) in rows {
            let outcome = match place {
                0 if failure.kind == FailureKind::Row && !broker.refuses(&event) => {
                    OTHER_RECORD_REFUSED.failure("refused")
                }
                0 => failure.clone(),
                _ => Failure::unknown("after a failure"),
            };
            shared.report(index, Err(outcome));
        }
    }
    if !broker.world.breaks(Sabotage::GapsAfterRefusal) {
        purge(broker, shared);
    }
}
