//! A session: one idempotent producer, and the rules under which rows are handed to it so that no key is ever
//! published with a gap.
//!
//! ```text
//!   row ── route ──▶ topic closed? ──▶ partition ──▶ first row of the partition: alone ──▶ the rest, in order
//!            │             │
//!            └ name bad    └ held: its rows wait
//! ```
//!
//! - The first failure closes the session for good: nothing is handed over after it. A gapless producer would refuse
//!   it anyway; a topic that is created just then would not, and row 2 would pass row 1.
//! - A topic is looked up in this producer's own metadata before its first row.
//! - A row as large as one that its topic has refused before is kept back to be judged alone. The rows before it in its
//!   partition are sent, those behind it wait for the next batch.
//! - The first row of a partition is sent alone and its acknowledgement awaited, since a broker that does not know a
//!   producer id yet accepts it at *any* sequence number: were the first request refused and the second one stored,
//!   the first would be lost and yet reported as delivered.

use crate::fail_point;
use crate::relay::cycle::large_rows::KeptBack;
use crate::relay::event::Event;
use crate::relay::failure::{Failure, FailureKind, Rejection};
use crate::relay::partition;
use crate::relay::publisher::{Producer, Refusal, Report};
use crate::relay::rows::Fate;
use crate::relay::rows::batch::Batch;
use crate::relay::rows::refusals::Refusals;
use pg_outbox::topic::TopicTemplate;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// This long after a partition was primed a row goes alone again, before anything is forgotten: brokers forget a producer id after
/// `producer.id.expiration.ms` (1 day by default).
const PRIMED_FOR: Duration = Duration::from_secs(600);

/// Between two batches a session remembers at most this many topics, and as many routes.
const TOPICS_KEPT: usize = 4_096;

/// One idempotent producer with what is known of its topics.
pub struct Session<P> {
    producer: P,
    topics: Vec<Topic>,
    routes: HashMap<Vec<u8>, Route>,
    /// Where each row of the current batch goes, as far as it was looked at.
    places: Vec<Option<Place>>,
    deferred: Vec<u32>,
    kept_back: KeptBack,
    /// Rows handed over whose report has not been taken in.
    unheard: usize,
    reports: Vec<Report>,
    /// When the last slice of rows came, read once for all of its rows.
    now: Instant,
    /// When the first row of the current batch was handed over.
    publishing_since: Option<Instant>,
    /// When the last acknowledgement came.
    heard_at: Option<Instant>,
    failure: Option<Failure>,
}

/// A topic and a partition of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    topic: u32,
    /// The partition.
    pub partition: u32,
}

struct Topic {
    name: String,
    state: State,
    /// When the session last looked at a row of it.
    used_at: Instant,
}

enum State {
    /// Not looked up in this batch.
    Unknown,
    Open(Vec<Priming>),
    /// To the end of the batch, even if the topic comes back before: else a later row of it would pass an earlier one.
    Held(Rejection),
}

#[derive(Clone, Copy)]
enum Priming {
    Fresh,
    Sent,
    Primed(Instant),
}

impl<P: Producer> Session<P> {
    /// A session that knows nothing yet.
    pub fn new(producer: P) -> Session<P> {
        Session {
            producer,
            topics: Vec::new(),
            routes: HashMap::new(),
            places: Vec::new(),
            deferred: Vec::new(),
            kept_back: KeptBack::default(),
            unheard: 0,
            reports: Vec::new(),
            now: Instant::now(),
            publishing_since: None,
            heard_at: None,
            failure: None,
        }
    }

    /// Begins a batch. Topics that were held before are looked up again: the claim would not have read their rows if they
    /// were still held.
    ///
    /// # Panics
    ///
    /// If reports of the batch before are outstanding: they would be taken for this one's.
    pub fn begin(&mut self, refusals: &Refusals) {
        assert!(self.unheard == 0 && self.deferred.is_empty(), "a batch began before the last one ended");
        self.places.clear();
        self.publishing_since = None;
        self.kept_back.begin(&refusals.sizes);
        self.forget_topics();
    }

    /// How long ago the first row of the batch was handed over, if one was.
    pub(crate) fn publishing(&self) -> Option<Duration> {
        self.publishing_since.map(|since| since.elapsed())
    }

    /// When Kafka was last heard of.
    pub(crate) fn heard_at(&self) -> Option<Instant> {
        self.heard_at
    }

    /// Why nothing more may be handed over, if so.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Closes the session: nothing more is handed over.
    pub(crate) fn close(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Hands over the rows from this index on that are still open, in order, and stops at the first failure. Waits
    /// only to look up a topic that it has not seen.
    pub async fn send<E: Event>(&mut self, template: &TopicTemplate, batch: &mut Batch<E>, from: usize) {
        self.places.resize(batch.len(), None);
        self.now = Instant::now();
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
            let topic = loop {
                match self.routes.get(batch.rows()[index].aggregate_type()) {
                    Some(Route::Topic(topic)) => break Some(*topic),
                    Some(Route::Invalid(topic, rejection)) => {
                        batch.rejected(index, topic, rejection.clone());
                        break None;
                    }
                    None => {
                        if let Err(failure) = self.look_up(template, batch, index).await {
                            return self.close(failure);
                        }
                    }
                }
            };
            if let Some(topic) = topic {
                self.offer(batch, index, topic);
            }
        }
        self.absorb(batch);
    }

    /// Waits until every row that was handed over has its report, or the session is closed by a failure.
    pub async fn finish<E: Event>(&mut self, batch: &mut Batch<E>) {
        loop {
            self.absorb(batch);
            if self.failure.is_some() || (self.unheard == 0 && self.deferred.is_empty()) {
                return;
            }
            fail_point::reach("waiting-for-reports").await;
            // Rows that wait for the first one of their partition wait for that one, not for all the others.
            self.producer.quiet(!self.deferred.is_empty()).await;
        }
    }

    /// After a failure: takes back what is not on its way, and waits for the reports of what is, so that less has to
    /// be sent again. [`Session::absorb`] takes in what came when the wait was cut short.
    pub(crate) async fn harvest(&mut self) {
        self.producer.stop();
        self.producer.drained().await;
    }

    /// Takes in the reports that have come, and hands over the rows that waited for the first one of their partition.
    pub(crate) fn absorb<E: Event>(&mut self, batch: &mut Batch<E>) {
        let mut reports = std::mem::take(&mut self.reports);
        self.producer.drain(&mut reports);
        let mut primed = false;
        let unheard = self.unheard;
        for Report { index, outcome } in reports.drain(..) {
            let index = index as usize;
            self.unheard -= 1;
            match outcome {
                Ok(()) => {
                    batch.acknowledged(index);
                    primed |= self.prime(index);
                }
                Err(failure) => self.report_failure(batch, index, failure),
            }
        }
        if self.unheard < unheard {
            self.heard_at = Some(Instant::now());
        }
        self.reports = reports;
        if let Some(refusal) = self.producer.refusal().filter(|_| self.producer.has_failed()) {
            self.close(refusal);
        }
        if primed && self.failure.is_none() {
            for index in std::mem::take(&mut self.deferred) {
                self.hand_over(batch, index as usize);
            }
        }
    }

    fn report_failure<E: Event>(&mut self, batch: &mut Batch<E>, index: usize, failure: Failure) {
        batch.unknown(index);
        match (failure.kind, self.places[index]) {
            (FailureKind::Row, _) => batch.suspect(index),
            (FailureKind::Topic, Some(place)) => self.hold(place, failure.clone().into()),
            _ => {}
        }
        self.close(failure);
    }

    /// The rows of this topic have to wait.
    pub(crate) fn hold(&mut self, place: Place, reason: Rejection) {
        self.topics[place.topic as usize].state = State::Held(reason);
    }

    /// Notes that the first row of a partition was acknowledged; true if rows may have waited for it.
    fn prime(&mut self, index: usize) -> bool {
        let Some(place) = self.places[index] else { return false };
        let State::Open(partitions) = &mut self.topics[place.topic as usize].state else { return false };
        let priming = &mut partitions[place.partition as usize];
        let waited = matches!(priming, Priming::Sent);
        if waited {
            *priming = Priming::Primed(Instant::now());
        }
        waited
    }

    fn offer<E: Event>(&mut self, batch: &mut Batch<E>, index: usize, topic: usize) {
        self.topics[topic].used_at = self.now;
        let partition = match &self.topics[topic].state {
            State::Open(partitions) => partition::of(batch.rows()[index].key(), partitions.len() as u32),
            State::Held(_) | State::Unknown => 0,
        };
        self.places[index] = Some(Place { topic: topic as u32, partition });
        self.hand_over(batch, index);
    }

    fn hand_over<E: Event>(&mut self, batch: &mut Batch<E>, index: usize) {
        let (Some(place), None) = (self.places[index], &self.failure) else { return };
        if batch.is_blocked(index) || self.kept_back.blocks(place) {
            return;
        }
        let topic = &mut self.topics[place.topic as usize];
        let State::Open(partitions) = &mut topic.state else { return };
        let priming = &mut partitions[place.partition as usize];
        match *priming {
            Priming::Sent => return self.deferred.push(index as u32),
            Priming::Primed(at) if self.now.duration_since(at) < PRIMED_FOR => {}
            Priming::Primed(_) | Priming::Fresh => *priming = Priming::Fresh,
        }
        // Not before the deferred rows, which precede it.
        if self.kept_back.keeps(place, &topic.name, batch.rows()[index].size()) {
            return batch.suspect(index);
        }
        self.publishing_since.get_or_insert(self.now);
        match self.producer.send(index as u32, &topic.name, place.partition, &batch.rows()[index]) {
            Ok(()) => {
                self.unheard += 1;
                batch.in_flight(index);
                if matches!(priming, Priming::Fresh) {
                    *priming = Priming::Sent;
                }
            }
            Err(Refusal::Row(rejection)) => batch.rejected(index, &topic.name, rejection),
            Err(Refusal::Session(failure)) => self.close(failure),
        }
    }

    /// Where a row of the current batch goes, if that was found out.
    pub(crate) fn place(&self, index: usize) -> Option<Place> {
        self.places.get(index).copied().flatten()
    }

    /// The name of a place's topic.
    pub(crate) fn topic(&self, place: Place) -> &str {
        &self.topics[place.topic as usize].name
    }

    /// Gives the producer up.
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
