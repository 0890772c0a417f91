//! A session: one idempotent producer, and the rules for sending rows so that no key is ever published with a gap.
//!
//! ```text
//!   row ── route ──▶ topic closed? ──▶ partition ──▶ first row of the partition: alone ──▶ the rest, in order
//!                          │
//!                          └ held: its rows wait
//! ```
//!
//! - The first failure closes the session permanently: nothing more is sent. Otherwise row 2 could overtake row 1, for
//!   example if its topic is created after row 1 has failed.
//! - A topic is looked up in this producer's own metadata before its first row, and again from time to time, between two
//!   batches, because the number of its partitions may change.
//! - A row as large as one that its topic has refused is kept back to be judged alone. Earlier rows of its partition are
//!   sent, and later ones wait for the next batch.
//! - A row that cannot become a record is rejected. After too many of them in a row, their topic is held, even if its name
//!   is invalid, and the rest of its rows wait.
//! - The first row of a partition is sent alone and waits for its ack. Brokers accept the first request of an unknown
//!   producer ID at *any* sequence number: if the first request failed and the second one were stored, the first would be
//!   lost although it is reported as delivered.

use crate::cycle::large_rows::LargeRows;
use crate::event::Event;
use crate::fail_point;
use crate::failure::{Failure, FailureKind, Rejection};
use crate::partition::{self, Counts};
use crate::publisher::{DeliveryReport, Producer, Refusal};
use crate::reason::REJECTS_EVERYTHING;
use crate::rows::Fate;
use crate::rows::batch::Batch;
use crate::rows::refusals::Refusals;
use crate::topic::{self, TopicRules};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a partition stays primed. It must be shorter than `producer.id.expiration.ms` (1 day by default), after which
/// brokers forget a producer ID.
const PRIMED_FOR: Duration = Duration::from_secs(600);

/// The longest name of a topic that is held for its rows, in bytes. A claim cuts longer values of a large row, and the names of
/// held topics have an index.
const HELD_NAME_MAX: usize = 299;

/// The maximum number of topics, and of routes, that a session remembers between two batches.
const TOPICS_KEPT: usize = 4_096;

/// One idempotent producer and the state of its topics.
pub struct Session<P> {
    producer: P,
    topics: Vec<Topic>,
    topics_by_name: HashMap<String, usize>,
    /// Where rows go, by what their topic depends on.
    routes: HashMap<Vec<u8>, Route>,
    /// Where each row of the current batch goes, as far as it is known.
    destinations: Vec<Option<Destination>>,
    /// Rows that wait for the first row of their partition.
    deferred: Vec<u32>,
    large_rows: LargeRows,
    refusals: Refusals,
    /// What all sessions know about the partitions of topics, and how many changes this one has seen.
    counts: Rc<Counts>,
    changes_seen: u64,
    /// Rows that were sent and whose report was not processed yet.
    unreported: usize,
    reports: Vec<DeliveryReport>,
    /// The time of the current `send`, read once for all rows.
    now: Instant,
    /// When the first row of the current batch was sent.
    publishing_since: Option<Instant>,
    reported_at: Option<Instant>,
    opened_at: Instant,
    failure: Option<Failure>,
}

/// A topic and a partition of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    topic: u32,
    pub partition: u32,
}

struct Topic {
    name: String,
    state: TopicState,
    /// When the session last had a row for it.
    used_at: Instant,
    /// When it was last looked up with a result that other sessions agree with.
    looked_up_at: Option<Instant>,
}

enum TopicState {
    /// Not looked up in this batch.
    Unknown,
    Open(Vec<Priming>),
    /// It was open in the last batch, and must be looked up again before its next row.
    Due(Vec<Priming>),
    /// Until the end of the batch, even if the topic works again: otherwise a later row could overtake an earlier one.
    Held(Rejection),
}

#[derive(Clone, Copy)]
enum Priming {
    Fresh,
    Sent,
    Primed(Instant),
}

impl<P: Producer> Session<P> {
    /// A session that knows no topics yet.
    pub fn new(producer: P, counts: Rc<Counts>) -> Session<P> {
        Session {
            changes_seen: counts.changes(),
            counts,
            producer,
            topics: Vec::new(),
            topics_by_name: HashMap::new(),
            routes: HashMap::new(),
            destinations: Vec::new(),
            deferred: Vec::new(),
            large_rows: LargeRows::default(),
            refusals: Refusals::new(),
            unreported: 0,
            reports: Vec::new(),
            now: Instant::now(),
            publishing_since: None,
            reported_at: None,
            opened_at: Instant::now(),
            failure: None,
        }
    }

    /// Begins a batch. Held topics are looked up again, because the claim reads their rows only after the hold has ended.
    ///
    /// # Panics
    ///
    /// If reports of the last batch are outstanding: they would be mistaken for those of this one.
    pub fn begin(&mut self, refusals: &Refusals) {
        assert!(self.unreported == 0 && self.deferred.is_empty(), "a batch began before the last one ended");
        self.destinations.clear();
        self.publishing_since = None;
        self.large_rows.begin(&refusals.sizes);
        self.refusals = refusals.clone();
        self.now = Instant::now();
        self.look_up_due();
        self.forget_topics();
    }

    /// How long ago the first row of the batch was sent.
    pub(crate) fn publishing(&self) -> Option<Duration> {
        self.publishing_since.map(|since| since.elapsed())
    }

    pub(crate) fn reported_at(&self) -> Option<Instant> {
        self.reported_at
    }

    /// When Kafka last answered this session.
    pub(crate) fn answered_at(&self) -> Instant {
        self.reported_at.unwrap_or(self.opened_at)
    }

    /// What the Kafka client last reported by itself, if it is at most this old.
    pub(crate) fn last_error(&self, max_age: Duration) -> Option<String> {
        self.producer.last_error(max_age)
    }

    /// Whether the producer should be replaced between two batches.
    pub(crate) fn is_worn(&self) -> bool {
        self.producer.is_worn()
    }

    /// Why the session is closed, if it is.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Closes the session: nothing more is sent.
    pub(crate) fn close(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Sends the open rows from this index on, in order, and stops at the first failure. Waits only to look up topics.
    pub async fn send<E: Event>(&mut self, topics: &TopicRules, batch: &mut Batch<E>, from: usize) {
        self.destinations.resize(batch.len(), None);
        self.now = Instant::now();
        let mut buffer = Vec::new();
        for index in from..batch.len() {
            if self.producer.has_failed() {
                self.absorb(batch);
            }
            if self.failure.is_some() {
                return;
            }
            if batch.fate(index) != Fate::Open || batch.is_blocked(index) {
                continue;
            }
            let Route { topic, invalid } = loop {
                match self.routes.get(topic::dependency(topics, &batch.rows()[index], &mut buffer)) {
                    Some(route) => break route.clone(),
                    None => {
                        if let Err(failure) = self.find_routes(topics, batch, index).await {
                            return self.close(failure);
                        }
                    }
                }
            };
            match invalid {
                None => self.send_to(batch, index, topic),
                Some(rejection) => {
                    self.destinations[index] = Some(Destination { topic: topic as u32, partition: 0 });
                    if !matches!(self.topics[topic].state, TopicState::Held(_)) {
                        self.reject(batch, index, topic, rejection);
                    }
                }
            }
        }
        self.absorb(batch);
    }

    /// Whether every row that was sent has its report.
    pub(crate) fn is_quiet(&self) -> bool {
        self.unreported == 0 && self.deferred.is_empty()
    }

    /// Waits until every row that was sent has its report, or a failure closes the session.
    pub async fn finish<E: Event>(&mut self, batch: &mut Batch<E>) {
        loop {
            self.absorb(batch);
            if self.failure.is_some() || self.is_quiet() {
                return;
            }
            fail_point::reach("waiting-for-reports").await;
            // Deferred rows wait only for the first row of their partition, so check after every report.
            self.producer.quiet(!self.deferred.is_empty()).await;
        }
    }

    /// Ends a closed session. Call [`Session::absorb`] afterwards.
    pub(crate) async fn stop(&mut self, within: Duration) {
        self.producer.stop(within).await;
    }

    /// Processes the reports that have arrived, and sends the rows that waited for the first row of their partition.
    pub(crate) fn absorb<E: Event>(&mut self, batch: &mut Batch<E>) {
        let mut reports = std::mem::take(&mut self.reports);
        self.producer.drain(&mut reports);
        let mut primed = false;
        let unreported = self.unreported;
        for DeliveryReport { index, outcome } in reports.drain(..) {
            let index = index as usize;
            self.unreported -= 1;
            match outcome {
                Ok(()) => {
                    batch.acknowledged(index);
                    primed |= self.prime(index);
                }
                Err(failure) => self.report_failure(batch, index, failure),
            }
        }
        if self.unreported < unreported {
            self.reported_at = Some(Instant::now());
        }
        self.reports = reports;
        if let Some(refusal) = self.producer.refusal().filter(|_| self.producer.has_failed()) {
            self.close(refusal);
        }
        if primed && self.failure.is_none() {
            for index in std::mem::take(&mut self.deferred) {
                self.send_row(batch, index as usize);
            }
        }
    }

    fn report_failure<E: Event>(&mut self, batch: &mut Batch<E>, index: usize, failure: Failure) {
        batch.unknown(index);
        match (failure.kind, self.destinations[index]) {
            (FailureKind::Row, _) => batch.suspect(index),
            (FailureKind::Topic, Some(destination)) => self.hold(destination, failure.clone().into()),
            _ => {}
        }
        self.close(failure);
    }

    /// Makes the rows of this topic wait.
    pub(crate) fn hold(&mut self, destination: Destination, reason: Rejection) {
        self.topics[destination.topic as usize].state = TopicState::Held(reason);
    }

    /// Records that the first row of a partition was acknowledged. Returns whether rows may have waited for it.
    fn prime(&mut self, index: usize) -> bool {
        let Some(destination) = self.destinations[index] else { return false };
        let TopicState::Open(partitions) = &mut self.topics[destination.topic as usize].state else {
            return false;
        };
        let priming = &mut partitions[destination.partition as usize];
        let waited = matches!(priming, Priming::Sent);
        if waited {
            *priming = Priming::Primed(Instant::now());
        }
        waited
    }

    fn send_to<E: Event>(&mut self, batch: &mut Batch<E>, index: usize, topic: usize) {
        self.topics[topic].used_at = self.now;
        let partition = match &self.topics[topic].state {
            TopicState::Open(partitions) => partition::of(batch.rows()[index].key(), partitions.len() as u32),
            TopicState::Held(_) | TopicState::Due(_) | TopicState::Unknown => 0,
        };
        self.destinations[index] = Some(Destination { topic: topic as u32, partition });
        self.send_row(batch, index);
    }

    fn send_row<E: Event>(&mut self, batch: &mut Batch<E>, index: usize) {
        let (Some(destination), None) = (self.destinations[index], &self.failure) else { return };
        if batch.is_blocked(index) || self.large_rows.blocks(destination) {
            return;
        }
        let topic = &mut self.topics[destination.topic as usize];
        let TopicState::Open(partitions) = &mut topic.state else { return };
        let priming = &mut partitions[destination.partition as usize];
        match *priming {
            Priming::Sent => return self.deferred.push(index as u32),
            Priming::Primed(at) if self.now.duration_since(at) < PRIMED_FOR => {}
            Priming::Primed(_) | Priming::Fresh => *priming = Priming::Fresh,
        }
        // This comes after the check for `Sent`, because deferred rows precede this one.
        if self.large_rows.keeps(destination, &topic.name, batch.rows()[index].size()) {
            return batch.suspect(index);
        }
        self.publishing_since.get_or_insert(self.now);
        match self.producer.send(index as u32, &topic.name, destination.partition, &batch.rows()[index]) {
            Ok(()) => {
                self.unreported += 1;
                batch.in_flight(index);
                self.refusals.sent(&topic.name);
                if matches!(priming, Priming::Fresh) {
                    *priming = Priming::Sent;
                }
            }
            Err(Refusal::Row(rejection)) => self.reject(batch, index, destination.topic as usize, rejection),
            Err(Refusal::Session(failure)) => self.close(failure),
        }
    }

    /// Rejects a row that cannot become a record. After too many of them in a row, the cause is probably the writer, so this
    /// holds their topic instead.
    fn reject<E: Event>(&mut self, batch: &mut Batch<E>, index: usize, topic: usize, rejection: Rejection) {
        let Topic { name, state, .. } = &mut self.topics[topic];
        let limit = batch.invalid_before_hold();
        let may_hold = limit < usize::MAX && name.len() <= HELD_NAME_MAX;
        if !may_hold || self.refusals.refused_unsent(name, batch.rows()[index].event_id()) <= limit {
            return batch.rejected(index, name, rejection);
        }
        let error =
            format!("more than {limit} events in a row were rejected before sending: {}", rejection.error);
        *state = TopicState::Held(REJECTS_EVERYTHING.rejection(error));
        let destinations = &self.destinations;
        let is_held = |index: u32| destinations[index as usize].is_some_and(|to| to.topic as usize == topic);
        self.deferred.retain(|index| !is_held(*index));
    }

    /// Where a row of the current batch goes, if known.
    pub(crate) fn destination(&self, index: usize) -> Option<Destination> {
        self.destinations.get(index).copied().flatten()
    }

    pub(crate) fn topic(&self, destination: Destination) -> &str {
        &self.topics[destination.topic as usize].name
    }

    pub(crate) fn abandon(self) {
        self.producer.abandon();
    }
}

mod outcome;
mod routes;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use outcome::Tally;
use routes::Route;
