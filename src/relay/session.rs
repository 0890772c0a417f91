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
//! - The first row of a partition is sent alone and its acknowledgement awaited, since a broker that does not know a
//!   producer id yet accepts it at *any* sequence number: were the first request refused and the second one stored,
//!   the first would be lost and yet reported as delivered.

use super::batch::{Batch, Fate};
use super::event::Event;
use super::failure::{Failure, FailureKind, Rejection};
use super::partition;
use super::publisher::{Producer, Refusal, Report};
use pg_outbox::topic::TopicTemplate;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// After a silence this long a partition's first row goes alone again: brokers forget a producer id after
/// `producer.id.expiration.ms` (1 day by default).
const PRIMED_FOR: Duration = Duration::from_secs(600);

/// One idempotent producer with what is known of its topics.
pub struct Session<P> {
    producer: P,
    topics: Vec<Topic>,
    routes: HashMap<Vec<u8>, usize>,
    /// Where each row of the current batch goes, as far as it was looked at.
    places: Vec<Option<Place>>,
    deferred: Vec<u32>,
    reports: Vec<Report>,
    failure: Option<Failure>,
}

/// A topic and a partition of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    topic: u32,
    /// The partition.
    pub partition: u32,
}

struct Topic {
    name: String,
    state: State,
}

enum State {
    Open(Vec<Priming>),
    Held(Rejection),
    /// Kafka allows no topic of this name.
    Invalid(Rejection),
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
            reports: Vec::new(),
            failure: None,
        }
    }

    /// Begins a batch. Topics that were held before are looked up anew: the claim would not have read their rows if
    /// they were held still.
    pub fn begin(&mut self) {
        self.producer.drain(&mut self.reports);
        assert!(
            self.producer.in_flight() == 0 && self.reports.is_empty() && self.deferred.is_empty(),
            "a batch begins while rows of the last one are on their way: their reports would be taken for its own"
        );
        self.places.clear();
        let topics = &self.topics;
        self.routes.retain(|_, &mut topic| matches!(topics[topic].state, State::Open(_)));
    }

    /// Why nothing more may be handed over, if so.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Closes the session: nothing more is handed over.
    pub fn close(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Hands over the rows from this index on that are still open, in order, and stops at the first failure. Waits
    /// only to look up a topic that it has not seen.
    pub async fn send<E: Event>(&mut self, template: &TopicTemplate, batch: &mut Batch<E>, from: usize) {
        self.places.resize(batch.len(), None);
        for index in from..batch.len() {
            if self.producer.has_failed() {
                self.absorb(batch);
            }
            if self.failure.is_some() {
                return;
            }
            if *batch.fate(index) != Fate::Open {
                continue;
            }
            let topic = match self.routes.get(batch.rows()[index].aggregate_type()) {
                Some(&topic) => topic,
                None => match self.look_up(template, batch.rows()[index].aggregate_type()).await {
                    Ok(topic) => topic,
                    Err(failure) => return self.close(failure),
                },
            };
            self.offer(batch, index, topic);
        }
        self.absorb(batch);
    }

    /// Waits until every row that was handed over has its report, or the session is closed by a failure.
    pub async fn finish<E: Event>(&mut self, batch: &mut Batch<E>) {
        loop {
            // Asked before the reports are taken: one that comes in between is taken in the next round. Asked only
            // behind them, it would be left for the next batch, and be taken for a report about a row of that one.
            let all_reported = self.producer.in_flight() == 0;
            self.absorb(batch);
            if self.failure.is_some()
                || (all_reported && self.producer.in_flight() == 0 && self.deferred.is_empty())
            {
                return;
            }
            self.producer.quiet().await;
        }
    }

    /// After a failure: waits for the reports of what is on its way already, so that less has to be sent again.
    pub async fn harvest<E: Event>(&mut self, batch: &mut Batch<E>) {
        self.producer.stop();
        while self.producer.in_flight() > 0 {
            self.producer.drained().await;
            self.absorb(batch);
        }
        self.absorb(batch);
    }

    /// Takes in the reports that have come, and hands over the rows that waited for the first one of their partition.
    fn absorb<E: Event>(&mut self, batch: &mut Batch<E>) {
        let mut reports = std::mem::take(&mut self.reports);
        self.producer.drain(&mut reports);
        let mut primed = false;
        for Report { index, outcome } in reports.drain(..) {
            let index = index as usize;
            match outcome {
                Ok(()) => {
                    batch.acknowledged(index);
                    primed |= self.prime(index);
                }
                Err(failure) => self.report_failure(batch, index, failure),
            }
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
        match (failure.kind, self.places[index]) {
            (FailureKind::Row, _) => batch.suspect(index),
            (FailureKind::Topic, Some(place)) => self.hold(place, failure.clone().into()),
            _ => {}
        }
        self.close(failure);
    }

    /// The rows of this topic have to wait.
    pub fn hold(&mut self, place: Place, reason: Rejection) {
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
        match &self.topics[topic].state {
            State::Held(_) => self.places[index] = Some(Place { topic: topic as u32, partition: 0 }),
            State::Invalid(rejection) => {
                let rejection = rejection.clone();
                batch.rejected(index, &self.topics[topic].name, rejection);
            }
            State::Open(partitions) => {
                let partition = partition::of(batch.rows()[index].key(), partitions.len() as u32);
                self.places[index] = Some(Place { topic: topic as u32, partition });
                self.hand_over(batch, index);
            }
        }
    }

    fn hand_over<E: Event>(&mut self, batch: &mut Batch<E>, index: usize) {
        let (Some(place), None) = (self.places[index], &self.failure) else { return };
        let topic = &mut self.topics[place.topic as usize];
        let State::Open(partitions) = &mut topic.state else { return };
        let priming = &mut partitions[place.partition as usize];
        match *priming {
            Priming::Sent => return self.deferred.push(index as u32),
            Priming::Primed(at) if at.elapsed() < PRIMED_FOR => {}
            Priming::Primed(_) | Priming::Fresh => *priming = Priming::Fresh,
        }
        match self.producer.send(index as u32, &topic.name, place.partition, &batch.rows()[index]) {
            Ok(()) => {
                if matches!(priming, Priming::Fresh) {
                    *priming = Priming::Sent;
                }
            }
            Err(Refusal::Row(rejection)) => batch.rejected(index, &topic.name, rejection),
            Err(Refusal::Session(failure)) => self.close(failure),
        }
    }

    async fn look_up(&mut self, template: &TopicTemplate, aggregate_type: &[u8]) -> Result<usize, Failure> {
        let name = template.topic(&String::from_utf8_lossy(aggregate_type));
        let known = self.topics.iter().position(|t| t.name == name && matches!(t.state, State::Open(_)));
        if let Some(topic) = known {
            self.routes.insert(aggregate_type.to_vec(), topic);
            return Ok(topic);
        }
        let state = match check_name(&name, aggregate_type) {
            Err(rejection) => State::Invalid(rejection),
            Ok(()) => match self.producer.lookup(&name).await {
                Ok(partitions) => State::Open(vec![Priming::Fresh; partitions as usize]),
                Err(failure) if failure.kind == FailureKind::Topic => State::Held(failure.into()),
                Err(failure) if failure.kind == FailureKind::Row => State::Invalid(failure.into()),
                Err(failure) => return Err(failure),
            },
        };
        let topic = match self.topics.iter().position(|t| t.name == name) {
            Some(topic) => topic,
            None => {
                self.topics.push(Topic { name, state: State::Held(Rejection::default()) });
                self.topics.len() - 1
            }
        };
        self.topics[topic].state = state;
        self.routes.insert(aggregate_type.to_vec(), topic);
        Ok(topic)
    }

    /// Where a row of the current batch goes, if that was found out.
    pub fn place(&self, index: usize) -> Option<Place> {
        self.places.get(index).copied().flatten()
    }

    /// The name of a place's topic.
    pub fn topic(&self, place: Place) -> &str {
        &self.topics[place.topic as usize].name
    }

    /// Topics of the current batch whose rows have to wait, with the reason.
    pub fn held(&self) -> impl Iterator<Item = (&str, &Rejection)> {
        let mut used = vec![false; self.topics.len()];
        for place in self.places.iter().flatten() {
            used[place.topic as usize] = true;
        }
        self.topics.iter().zip(used).filter(|(_, used)| *used).filter_map(|(topic, _)| match &topic.state {
            State::Held(reason) => Some((topic.name.as_str(), reason)),
            _ => None,
        })
    }

    /// Gives the producer up.
    pub fn abandon(self) {
        self.producer.abandon();
    }
}

fn check_name(topic: &str, aggregate_type: &[u8]) -> Result<(), Rejection> {
    let invalid = |error: String| Rejection { reason: "invalid-topic-name", error };
    std::str::from_utf8(aggregate_type)
        .map_err(|_| invalid("aggregate_type is not UTF-8, so it names no Kafka topic".to_owned()))?;
    pg_outbox::topic::check_topic(topic).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests;
