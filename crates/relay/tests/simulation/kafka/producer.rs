//! An idempotent producer without gaps, as the relay sees it: it accepts rows and returns reports.

use super::broker::{PARTITIONS, Place};
use super::cluster::SimCluster;
use super::queue::{self, Queue};
use crate::event::{SimEvent, TOPICS, topic_number};
use crate::plan::Sabotage;
use crate::world::{World, add};
use relay::failure::{FailureKind, KafkaFailure, Rejection};
use relay::outbox::Event;
use relay::publisher::{self, DeliveryReport, NotSent, Producer};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// An idempotent producer.
pub struct SimProducer {
    shared: Rc<Shared>,
}

/// What the producer shares with its sending tasks.
pub(super) struct Shared {
    pub cluster: SimCluster,
    pub state: RefCell<Sending>,
    wake: Notify,
}

#[derive(Default)]
pub(super) struct Sending {
    pub queues: [[Queue; PARTITIONS]; TOPICS.len()],
    pub reports: Vec<DeliveryReport>,
    pub in_flight: usize,
    /// Failures that a sabotaged world withholds until the end.
    withheld: Vec<DeliveryReport>,
    pub failed: bool,
    /// It is unknown whether some row was stored.
    pub unknown: bool,
    /// A failed row does not fail the rows behind it.
    pub gaps: bool,
    /// No more rows may be sent.
    pub fatal: bool,
    /// A request was refused permanently: nothing is sent again either.
    pub dead: bool,
    pub abandoned: bool,
}

impl Sending {
    pub fn queue(&mut self, place: Place) -> &mut Queue {
        &mut self.queues[place.topic as usize][place.partition as usize]
    }
}

impl SimProducer {
    pub(super) fn new(cluster: SimCluster) -> SimProducer {
        let id = cluster.broker.new_producer();
        let mut state = Sending::default();
        for queue in state.queues.iter_mut().flatten() {
            queue.producer = id;
        }
        SimProducer { shared: Rc::new(Shared { cluster, state: RefCell::new(state), wake: Notify::new() }) }
    }

    /// A producer for probing topics.
    pub(super) fn with_gaps(cluster: SimCluster) -> SimProducer {
        let producer = SimProducer::new(cluster);
        producer.shared.state.borrow_mut().gaps = true;
        producer
    }

    fn world(&self) -> &World {
        &self.shared.cluster.broker.world
    }
}

impl Shared {
    /// Reports the outcome of a row.
    pub fn report(&self, row: &queue::Row, outcome: Result<(), KafkaFailure>) {
        let world = &self.cluster.broker.world;
        let Some(index) = row.index else { return };
        let mut state = self.state.borrow_mut();
        let mut outcome = outcome;
        match &outcome {
            Ok(()) => self.cluster.broker.promises.acknowledged(row.event.identity),
            Err(failure)
                if failure.kind == FailureKind::Unknown && world.breaks(Sabotage::UnknownIsSuccess) =>
            {
                outcome = Ok(());
            }
            Err(failure)
                if failure.kind == FailureKind::Topic && world.breaks(Sabotage::TopicCreatedMidBatch) =>
            {
                state.withheld.push(DeliveryReport { index, outcome });
                return state.release_withheld(&self.wake);
            }
            Err(failure) => {
                state.failed = true;
                state.unknown |= !matches!(failure.kind, FailureKind::Row | FailureKind::Topic);
            }
        }
        state.in_flight -= 1;
        state.reports.push(DeliveryReport { index, outcome });
        state.release_withheld(&self.wake);
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

    /// Removes rows that are queued but not in flight. A request that was refused for a moment is queued.
    fn purge(&self) {
        let world = &self.cluster.broker.world;
        let half = world.breaks(Sabotage::EnqueuedWhilePurged) && !self.state.borrow().abandoned;
        let mut purged = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            state.fatal |= !half;
            for queue in state.queues.iter_mut().flatten() {
                purged.extend(queue.take_queued(half));
            }
        }
        for row in purged {
            self.report(&row, Err(KafkaFailure::unknown("purged")));
        }
    }

    /// Removes all rows. Requests in flight may still be stored, but nothing is sent again.
    fn purge_all(&self) {
        self.state.borrow_mut().abandoned = true;
        self.purge();
        let state = self.state.borrow();
        let in_flight: Vec<queue::Row> = state.queues.iter().flatten().flat_map(Queue::in_flight).collect();
        drop(state);
        for row in in_flight {
            self.report(&row, Err(KafkaFailure::unknown("purged in flight")));
        }
    }

    /// A request was refused permanently. A producer without gaps sends nothing more.
    pub fn die(&self) {
        let world = &self.cluster.broker.world;
        let gaps = self.state.borrow().gaps;
        if !gaps && !world.breaks(Sabotage::GapsAfterRefusal) {
            self.state.borrow_mut().dead = !world.breaks(Sabotage::EnqueuedWhilePurged);
            self.purge();
        }
    }
}

impl Sending {
    fn release_withheld(&mut self, wake: &Notify) {
        if self.in_flight == self.withheld.len() && !self.withheld.is_empty() {
            self.in_flight = 0;
            self.failed = true;
            self.reports.append(&mut self.withheld);
        }
        wake.notify_waiters();
    }
}

impl Producer for SimProducer {
    async fn lookup(&self, topic: &str) -> Result<u32, KafkaFailure> {
        if self.world().breaks(Sabotage::TopicCreatedMidBatch) {
            return Ok(PARTITIONS as u32);
        }
        self.shared.cluster.describe(topic).await
    }

    async fn leaders(&self, topic: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
        let partitions = self.shared.cluster.describe(topic).await?;
        // Each partition has its own broker.
        Ok((0..partitions as i32)
            .map(|partition| Some(10 * i32::from(topic_number(topic)) + partition))
            .collect())
    }

    async fn reach_leader(&self, topic: &str, partition: u32) -> Result<(), KafkaFailure> {
        let place = Place { topic: topic_number(topic), partition: partition as u8 };
        self.shared.cluster.reach(place).await
    }

    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), NotSent> {
        let place = Place { topic: topic_number(topic), partition: partition as u8 };
        let event = SimEvent::seen_by_relay(event, place.topic);
        let world = Rc::clone(&self.shared.cluster.broker.world);
        let cluster = &self.shared.cluster;
        cluster.broker.promises.sent(cluster.process.number, &event);
        let is_invalid = cluster.broker.is_invalid(place.topic);
        if is_invalid {
            cluster.broker.promises.refused_alone(event.identity);
        }
        if is_invalid || cluster.broker.promises.is_unsendable(event.identity) {
            if world.breaks(Sabotage::BlockedBehindOpenRow) {
                cluster.process.refused.borrow_mut().push(event);
            }
            let error = "refused before it was sent".to_owned();
            return Err(NotSent::Row(Rejection { reason: "invalid-header", error }));
        }
        let mut state = self.shared.state.borrow_mut();
        if state.fatal {
            return Err(NotSent::Session(KafkaFailure::unknown("the producer is fatal")));
        }
        let early = world.breaks(Sabotage::SettledBeforeAcknowledged);
        if early {
            state.reports.push(DeliveryReport { index, outcome: Ok(()) });
        } else {
            state.in_flight += 1;
        }
        // A round of probes sends one row of each held topic.
        let most = if state.gaps { TOPICS.len() } else { world.plan.batch_rows };
        if state.in_flight > most {
            world.violate(|| "more rows in flight than a batch may hold".to_owned());
        }
        let queue = state.queue(place);
        if queue.accepted == 1 && world.breaks(Sabotage::NotPrimed) {
            queue.restart(self.shared.cluster.broker.new_producer());
        }
        queue.accepted += 1;
        queue.waiting.push_back(queue::Row { index: (!early).then_some(index), event });
        if !queue.running {
            queue.running = true;
            tokio::task::spawn_local(queue::send(Rc::clone(&self.shared), place));
        }
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.shared.state.borrow().failed
    }

    fn fatal_error(&self) -> Option<KafkaFailure> {
        None
    }

    fn take_reports(&mut self, reports: &mut Vec<DeliveryReport>) {
        reports.append(&mut self.shared.state.borrow_mut().reports);
    }

    async fn wait_until_quiet(&mut self, any: bool) {
        let quiet =
            |state: &Sending| state.in_flight == 0 || state.failed || (any && !state.reports.is_empty());
        self.shared.wait(quiet).await;
    }

    async fn withdraw(&mut self) {
        if self.world().breaks(Sabotage::GapsAfterRefusal) {
            return;
        }
        let is_dead = self.shared.state.borrow().dead;
        if is_dead { self.shared.purge() } else { self.shared.purge_all() }
    }

    async fn stop(&mut self, within: Duration) {
        if self.world().breaks(Sabotage::QueueTakenBackAlone) {
            self.shared.purge();
            _ = timeout(within, self.all_reported()).await;
        } else {
            publisher::stop(self, within).await;
        }
    }

    async fn all_reported(&mut self) {
        self.shared.wait(|state| state.in_flight == 0).await;
    }
}

/// A relay that dies or abandons a producer discards its queues. Requests in flight stay in flight.
impl Drop for SimProducer {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        state.abandoned = true;
        // A report that arrives while the batch is settled is not processed either.
        if state.in_flight > 0 || state.unknown || !state.reports.is_empty() {
            add(&self.world().count.interruptions, 1);
        }
        drop(state);
        self.shared.purge();
    }
}
