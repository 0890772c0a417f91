//! Probes of held topics, many at once. A probe publishes one row of its topic alone, because metadata does not show
//! whether the topic accepts writes.
//!
//! ```text
//!   due topics ─▶ metadata ─▶ a row of each ─▶ does its leader answer? ─▶ lock the lanes, read, send, wait a moment
//!                    │                                  │                      │                     │
//!                    └ missing: postponed               └ no: postponed        │ acked: settle,      │ no ack yet:
//!                                                                              │ release the topic   │ release the lanes
//!                                                                              ▼                     ▼
//!                                                                            done      acked later: lock, settle, release
//! ```
//!
//! No lane is locked before the leader has answered, or for more than 250 ms while waiting for Kafka. A row whose ack is
//! late stays in flight without the lock. That is safe: its topic is held, so no claim reads the row or a later one, and
//! the lease stops other relays from probing with it. The row stays unsent until its ack arrives. It then enters the
//! acknowledged set, and the hold ends only after a claim of its lane has settled it. If an operator deletes the hold
//! first, a claim that reads the row waits for the probe.

use crate::holds::flight::{Candidate, Flight, ProbeResults, leaders, reachable, settle_late};
use crate::holds::{Due, Failed, Holds};
use crate::publisher::LISTED_FROM;
use crate::reason::{INVALID_TOPIC_NAME, NO_ANSWER, UNKNOWN_TOPIC, not_listed};
use crate::{FailureKind, FaultKind, KafkaFailure, LANES, Outbox, PostgresFault, Producer, Publisher, Relay};
use pg_outbox::topic::check_topic;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Topics per round. One claim locks the lanes of all of them.
const TOPICS_MAX: usize = 64;
/// Producers that may wait for late acks. At the limit, no further topics are probed.
const LATE_MAX: usize = 4;
/// How long a producer may be silent once `LATE_MAX` producers wait for late acks. Otherwise `publish_timeout` applies. Slow
/// brokers still send acks from time to time: a producer that gives up too early causes duplicates.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// How often a relay that stops looks for late acks.
const LATE_EVERY: Duration = Duration::from_millis(50);
/// How often the lease of a topic with a late ack is renewed.
const RENEW_LEASES_EVERY: Duration = Duration::from_secs(2);
/// The minimum time between two releases that make all other topics due, and what each held topic adds to it.
const MAKE_DUE_EVERY: Duration = Duration::from_secs(2);
const MAKE_DUE_PER_TOPIC: Duration = Duration::from_millis(2);
/// Topics per round while so many are held that they are compared with the list of all topics.
const LISTED_TOPICS_MAX: usize = 1_024;
/// The minimum time between two lists, and how much longer than the request itself it is: the answer has all topics of the
/// cluster.
const LIST_EVERY: Duration = Duration::from_secs(2);
const LIST_SHARE: u32 = 50;
/// How long a topic is left out of the search for events after that search has timed out. It walks all rows that wait.
const SLOW_FOR: Duration = Duration::from_secs(600);

pub(crate) struct Probes<'a, P: Publisher, H, O: Outbox> {
    relay: &'a Relay<P>,
    holds: H,
    outbox: O,
    /// Kept while every row sent on it was acknowledged.
    producer: Option<P::Producer>,
    /// The version of the settings that `producer` was opened with.
    renewals: u64,
    late: Vec<Flight<P::Producer, O::Event>>,
    /// Topics whose probes had no result. Their leases are given back, so that other relays can probe them at once.
    unfinished: Vec<String>,
    lane_rests: [Option<Instant>; LANES],
    made_due_at: Option<Instant>,
    make_all_due: bool,
    /// How many more topics to probe one at a time, because Postgres could not read the rows of several together.
    alone: usize,
    /// Topics for which Postgres found no event in time, and until when they are not searched for.
    slow: HashMap<String, Instant>,
    /// The topics of the cluster, if so many are held that each round begins with a list of them.
    listed: Option<HashSet<String>>,
    list_at: Instant,
}

impl<'a, P: Publisher, H: Holds, O: Outbox> Probes<'a, P, H, O> {
    pub(crate) fn new(relay: &'a Relay<P>, holds: H, outbox: O) -> Probes<'a, P, H, O> {
        Probes {
            relay,
            holds,
            outbox,
            producer: None,
            renewals: 0,
            late: Vec::new(),
            unfinished: Vec::new(),
            lane_rests: [None; LANES],
            made_due_at: None,
            make_all_due: false,
            alone: 0,
            slow: HashMap::new(),
            listed: None,
            list_at: Instant::now(),
        }
    }

    /// Makes every postponed topic due, because Kafka is available again.
    pub(crate) fn make_due(&mut self) {
        self.make_all_due = true;
    }

    /// Stops waiting for acks, because Kafka is unavailable.
    pub(crate) fn give_up(&mut self) {
        for flight in self.late.drain(..) {
            self.unfinished.extend(flight.topics().map(str::to_owned));
            flight.abandon(&self.relay.memory);
        }
        if let Some(producer) = self.producer.take() {
            producer.abandon();
        }
    }

    /// Processes late acks, then probes every topic that is due once.
    pub(crate) async fn round(&mut self) -> Result<(), PostgresFault> {
        let relay = self.relay;
        if !self.unfinished.is_empty() {
            self.holds.retry_soon(&named(&self.unfinished)).await?;
            self.unfinished.clear();
        }
        self.listed = None;
        loop {
            self.take_in_late().await?;
            if relay.stats.held_topics.get() == 0 {
                if let Some(producer) = self.producer.take() {
                    producer.abandon();
                }
                self.slow.clear();
                return Ok(());
            }
            if std::mem::take(&mut self.make_all_due) {
                self.holds.make_due().await?;
            }
            if self.late.len() >= LATE_MAX || relay.lanes.board.is_stopped() || !self.may_probe().await {
                return Ok(());
            }
            let together = if self.listed.is_some() { LISTED_TOPICS_MAX } else { TOPICS_MAX };
            let topics_max = if self.alone > 0 { 1 } else { together };
            self.alone = self.alone.saturating_sub(1);
            let due = self.holds.due(topics_max).await?;
            if due.is_empty() || !relay.kafka.gate.is_open() {
                self.unfinished.extend(due.into_iter().map(|due| due.topic));
                return Ok(());
            }
            self.unfinished = due.iter().map(|due| due.topic.clone()).collect();
            let mut found = ProbeResults::default();
            let probed = self.probe(due, &mut found).await;
            self.conclude(found).await?;
            probed?;
        }
    }

    /// Waits for late acks and records them, so that another relay does not publish their rows again.
    pub(crate) async fn end(&mut self) -> Result<(), PostgresFault> {
        let (mut done, until) = (Ok(()), Instant::now() + ANSWER_WITHIN);
        while !self.late.is_empty() && self.relay.kafka.gate.is_open() && Instant::now() < until {
            sleep(LATE_EVERY).await;
            done = done.and(self.take_in_late().await);
        }
        done
    }

    /// Lists the topics of the cluster if many are held. Returns false if the last list was made a moment ago.
    async fn may_probe(&mut self) -> bool {
        let is_listed = self.listed.is_some() || self.relay.stats.held_topics.get() < LISTED_FROM as i64;
        if is_listed || Instant::now() < self.list_at {
            return is_listed;
        }
        // If there is no producer, the probes fail for the same cause.
        let Ok(producer) = self.producer().await else { return true };
        let begun = Instant::now();
        self.listed = producer.list_topics().await;
        self.producer = Some(producer);
        self.list_at = Instant::now() + LIST_EVERY.max(LIST_SHARE * begun.elapsed());
        true
    }

    /// Records the results of a round in the database.
    async fn conclude(&mut self, found: ProbeResults) -> Result<(), PostgresFault> {
        let relay = self.relay;
        if !found.works.is_empty() {
            self.holds.release(&named(&found.works)).await?;
            self.finished(&found.works);
            found.works.iter().for_each(|topic| relay.memory.holds.released(topic));
            // The fix may have helped other topics too.
            self.list_at = Instant::now();
            let held = u32::try_from(relay.stats.held_topics.get()).unwrap_or_default();
            let every = MAKE_DUE_EVERY + MAKE_DUE_PER_TOPIC.saturating_mul(held);
            if self.made_due_at.is_none_or(|at| at.elapsed() >= every) {
                self.made_due_at = Some(Instant::now());
                self.make_all_due = true;
            }
        }
        if !found.fails.is_empty() {
            let failed = found.fails.iter().map(|(topic, failure)| {
                let reason = (failure.kind == FailureKind::Topic).then_some(failure.reason);
                Failed { topic, reason, error: &failure.error }
            });
            self.holds.postpone(&failed.collect::<Vec<_>>()).await?;
            self.finished(found.fails.iter().map(|(topic, _)| topic));
        }
        if !found.unknown.is_empty() {
            self.holds.retry_soon(&named(&found.unknown)).await?;
            self.finished(&found.unknown);
        }
        Ok(())
    }

    fn finished<'t>(&mut self, topics: impl IntoIterator<Item = &'t String>) {
        let topics: HashSet<&String> = topics.into_iter().collect();
        self.unfinished.retain(|topic| !topics.contains(topic));
    }

    async fn probe(&mut self, mut due: Vec<Due>, found: &mut ProbeResults) -> Result<(), PostgresFault> {
        // The lease may have expired while an ack was late.
        let in_flight: HashSet<&str> = self.late.iter().flat_map(Flight::topics).collect();
        due.retain(|due| !in_flight.contains(due.topic.as_str()));
        self.unfinished.retain(|topic| !in_flight.contains(topic.as_str()));
        let mut due = self.of_valid_names(due, found).await?;
        self.leave_out(&mut due, found);
        if due.is_empty() {
            return Ok(());
        }
        let producer = match self.producer().await {
            Ok(producer) => producer,
            Err(failure) => {
                found.fails.extend(due.into_iter().map(|due| (due.topic, failure.clone())));
                return Ok(());
            }
        };
        let known = leaders(&producer, due, found).await;
        let asked: Vec<Due> = known.iter().map(|(due, _)| due.clone()).collect();
        let searched = if asked.is_empty() { Ok(Vec::new()) } else { self.holds.examples(&asked).await };
        let examples = match searched {
            Err(fault) if matches!(fault.kind, FaultKind::TimedOut | FaultKind::Data) => {
                self.producer = Some(producer);
                self.cannot_search(asked, &fault, found);
                return Ok(());
            }
            found => found?,
        };
        let mut candidates = Vec::new();
        for ((due, leaders), example) in known.into_iter().zip(examples) {
            match example {
                Some(example) => candidates.push(Candidate::new(due, example, &leaders)),
                None => found.works.push(due.topic),
            }
        }
        let resting = |candidate: &Candidate| {
            self.lane_rests[candidate.example.lane.index()].is_some_and(|until| until > Instant::now())
        };
        let (resting, candidates): (Vec<_>, Vec<_>) = candidates.into_iter().partition(resting);
        found.unknown.extend(resting.into_iter().map(|candidate| candidate.due.topic));
        let candidates = reachable(&producer, candidates, found).await;
        let topics: Vec<String> = candidates.iter().map(|candidate| candidate.due.topic.clone()).collect();
        let mut flight = Flight::new(producer);
        let done =
            match flight.publish(self.relay, &mut self.outbox, candidates, found, &mut self.lane_rests).await
            {
                Err(fault) if fault.kind == FaultKind::Data => {
                    self.cannot_read(topics, &flight, found);
                    Ok(())
                }
                done => done,
            };
        let kept = self.keep_late(flight, found).await;
        done.and(kept)
    }

    /// Handles the topics whose names are invalid, and returns the others. Such a topic is released when no row waits for it,
    /// because its rows were corrected or deleted.
    async fn of_valid_names(
        &mut self,
        due: Vec<Due>,
        found: &mut ProbeResults,
    ) -> Result<Vec<Due>, PostgresFault> {
        let (valid, invalid): (Vec<Due>, Vec<Due>) =
            due.into_iter().partition(|due| check_topic(&due.topic).is_ok());
        let examples = if invalid.is_empty() { Vec::new() } else { self.holds.examples(&invalid).await? };
        for (Due { topic, .. }, example) in invalid.into_iter().zip(examples) {
            match (example, check_topic(&topic)) {
                (Some(_), Err(error)) => {
                    found.fails.push((topic, INVALID_TOPIC_NAME.failure(error.to_string())));
                }
                _ => found.works.push(topic),
            }
        }
        Ok(valid)
    }

    /// Removes the topics that need no probe now: missing ones, those that are not searched for, and those beyond a claim.
    fn leave_out(&mut self, due: &mut Vec<Due>, found: &mut ProbeResults) {
        let now = Instant::now();
        self.slow.retain(|_, until| *until > now);
        due.retain(|Due { topic, .. }| {
            let is_missing = self.listed.as_ref().is_some_and(|listed| !listed.contains(topic));
            if is_missing {
                found.fails.push((topic.clone(), UNKNOWN_TOPIC.failure(not_listed(topic))));
            } else if self.slow.contains_key(topic) {
                found.fails.push((topic.clone(), KafkaFailure::unknown(NO_EVENT_FOUND)));
            }
            !is_missing && !self.slow.contains_key(topic)
        });
        let rest = due.split_off(due.len().min(TOPICS_MAX));
        found.unknown.extend(rest.into_iter().map(|due| due.topic));
    }

    /// Handles a search for events that has failed. Several topics are searched for one at a time. A single one is left out
    /// for a while, because each search takes until its timeout.
    fn cannot_search(&mut self, due: Vec<Due>, fault: &PostgresFault, found: &mut ProbeResults) {
        match <[Due; 1]>::try_from(due) {
            Ok([Due { topic, .. }]) => {
                tracing::debug!(topic, "no event to probe the topic with: {fault}");
                found.fails.push((topic.clone(), KafkaFailure::unknown(NO_EVENT_FOUND)));
                self.slow.insert(topic, Instant::now() + SLOW_FOR);
            }
            Err(due) => {
                self.alone = due.len();
                found.unknown.extend(due.into_iter().map(|due| due.topic));
            }
        }
    }

    /// Handles rows that Postgres cannot read. Several topics are probed one at a time. A single topic is released, because
    /// only a worker's claim can decide about an unreadable row.
    fn cannot_read(
        &mut self,
        topics: Vec<String>,
        flight: &Flight<P::Producer, O::Event>,
        found: &mut ProbeResults,
    ) {
        match <[String; 1]>::try_from(topics) {
            Ok([topic]) => found.works.push(topic),
            Err(topics) => {
                self.alone = topics.len();
                let is_open = |topic: &String| {
                    !found.knows(topic) && flight.topics().all(|in_flight| in_flight != topic)
                };
                let open: Vec<String> = topics.into_iter().filter(is_open).collect();
                found.unknown.extend(open);
            }
        }
    }

    /// The producer of the last round, or a new one if that one failed, is worn, or the settings changed.
    async fn producer(&mut self) -> Result<P::Producer, KafkaFailure> {
        let relay = self.relay;
        let renewals = relay.settings.renewals();
        let renewed = std::mem::replace(&mut self.renewals, renewals) != renewals;
        if let Some(producer) = self.producer.take() {
            if !renewed && !producer.has_failed() && !producer.is_worn() {
                return Ok(producer);
            }
            producer.abandon();
        }
        relay.kafka.publisher.open_for_probes().await
    }

    /// Runs after the lanes were released. Keeps the producer, or keeps waiting for late acks.
    async fn keep_late(
        &mut self,
        mut flight: Flight<P::Producer, O::Event>,
        found: &mut ProbeResults,
    ) -> Result<(), PostgresFault> {
        let relay = self.relay;
        flight.take_failed(&relay.memory, found);
        if flight.is_done() {
            if flight.has_failed() {
                flight.abandon(&relay.memory);
            } else {
                self.producer = Some(flight.into_producer());
            }
            return Ok(());
        }
        let topics: Vec<String> = flight.topics().map(str::to_owned).collect();
        self.finished(&topics);
        self.late.push(flight);
        self.holds.renew_leases(&named(&topics)).await
    }

    /// Processes acks that arrived since the lanes were released, and gives up on those that took too long.
    async fn take_in_late(&mut self) -> Result<(), PostgresFault> {
        let relay = self.relay;
        let mut flights = std::mem::take(&mut self.late);
        let within =
            if flights.len() < LATE_MAX { relay.settings.limits().publish_timeout } else { ANSWER_WITHIN };
        let mut found = ProbeResults::default();
        let (mut settled, mut renewed) = (Ok(()), Ok(()));
        while let Some(mut flight) = flights.pop() {
            let acknowledged = flight.take_acknowledged(&relay.memory);
            self.unfinished.extend(acknowledged.iter().map(|(topic, _)| topic.clone()));
            if !acknowledged.is_empty() {
                // The brokers are slow but available, so no lane has to rest.
                self.lane_rests = [None; LANES];
            }
            if !acknowledged.is_empty() && settled.is_ok() {
                settled = settle_late(relay, &mut self.outbox, acknowledged, &mut found).await;
            }
            flight.take_failed(&relay.memory, &mut found);
            if flight.is_done() {
                flight.abandon(&relay.memory);
            } else if flight.silent_for() >= within {
                found.fails.extend(flight.topics().map(|topic| (topic.to_owned(), no_answer(within))));
                flight.abandon(&relay.memory);
            } else {
                if flight.renewal_is_due(RENEW_LEASES_EVERY) {
                    let topics: Vec<String> = flight.topics().map(str::to_owned).collect();
                    renewed = renewed.and(self.holds.renew_leases(&named(&topics)).await);
                }
                self.late.push(flight);
            }
        }
        self.conclude(found).await?;
        settled.and(renewed)
    }
}

const NO_EVENT_FOUND: &str = "PostgreSQL found no event of the topic in time to probe it with";

fn named(topics: &[String]) -> Vec<&str> {
    topics.iter().map(String::as_str).collect()
}

fn no_answer(within: Duration) -> KafkaFailure {
    NO_ANSWER.failure(format!("the leader has acknowledged no probe for {within:?}"))
}

#[cfg(test)]
mod tests;
