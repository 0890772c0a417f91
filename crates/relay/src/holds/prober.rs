//! The prober: detects when Kafka or a held topic is available again.
//!
//! It probes many held topics at once. A probe publishes one row of its topic alone, because metadata does not show whether
//! the topic accepts writes.
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
//! acknowledged set, and the lease and the hold end only after a claim of its lane has settled it. If an operator deletes the
//! hold first, a claim that reads the row waits for the probe.

use crate::health::availability::PROBER;
use crate::health::stats::TOPICS_NAMED_MAX;
use crate::holds::flight::{
    Candidate, Flight, LANES_WITHIN, LOCKED_FOR, ProbeResults, Unsettled, leaders, reachable, settle_late,
};
use crate::holds::{Due, ExampleRow, Failed, Holds, Pause, log_pauses};
use crate::publisher::LISTED_FROM;
use crate::reason::{INVALID_TOPIC_NAME, STUCK, UNKNOWN_TOPIC, not_listed};
use crate::{
    Availability, Backoff, FailureKind, FaultKind, KafkaFailure, LANES, Lane, Outbox, PostgresFault,
    Producer, Publisher, Relay, fail_point,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pg_outbox::topic::check_topic;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const CLUSTER_FIRST: Duration = Duration::from_millis(200);
const CLUSTER_MOST: Duration = Duration::from_secs(2);
const CLUSTER_PROBES_MOST: usize = 6;
/// If no row is left to prove that Kafka works, an outage that no probe detects ends after this time without a failure.
const OUTAGE_OVER_AFTER: Duration = Duration::from_secs(15);
const OUTAGE_CHECK_EVERY: Duration = Duration::from_secs(1);
const HOLDS_EVERY: Duration = Duration::from_millis(500);
/// How long a sample of many held topics is kept if the set of holds does not change.
const NAMED_FOR: Duration = Duration::from_secs(10);
const ADVICE: &str = "Events of topics that are not held are still published. If this persists, run `outbox-relay \
     check-config --connect`";

/// Opens the gate whenever Kafka answers. After a session failure, the outage lasts until a row is acknowledged, because a
/// probe may not detect the cause.
pub async fn keep_gate<P: Publisher>(relay: Rc<Relay<P>>, random: fastrand::Rng) {
    let mut backoff = Backoff::new(CLUSTER_FIRST, CLUSTER_MOST, random);
    loop {
        tokio::select! {
            biased;
            () = relay.kafka.gate.closed() => {}
            () = quiet(&relay) => {
                relay.kafka.gate.works();
                continue;
            }
        }
        if let Some(reason) = relay.kafka.gate.reason() {
            relay.kafka.gate.failed(&reason);
        }
        if relay.kafka.gate.is_flapping.get() {
            sleep(backoff.next_wait()).await;
        } else {
            backoff.reset();
        }
        probe_until_answered(&relay, &mut backoff).await;
        if relay.kafka.gate.since_failure().is_none() {
            relay.kafka.gate.works();
        }
        relay.kafka.gate.open();
    }
}

/// Waits until the last failure is [`OUTAGE_OVER_AFTER`] ago while all workers are idle: no row is left to prove that Kafka works.
async fn quiet<P>(relay: &Relay<P>) {
    while relay.kafka.gate.since_failure().is_none_or(|time| time < OUTAGE_OVER_AFTER)
        || relay.stats.workers_busy.get() > 0
    {
        sleep(OUTAGE_CHECK_EVERY).await;
    }
}

/// Probes Kafka until a probe succeeds. Probes overlap: on a dead connection, a probe may hang even after Kafka is back.
async fn probe_until_answered<P: Publisher>(relay: &Relay<P>, backoff: &mut Backoff) {
    let mut probes = FuturesUnordered::new();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(answer) = probes.next() => match answer {
                Ok(()) => return,
                Err(failure) => relay.kafka.gate.failed(&failure),
            },
            () = sleep_until(next), if probes.len() < CLUSTER_PROBES_MOST => {
                probes.push(relay.kafka.publisher.probe());
                // A probe takes several round trips; give it time before the next one.
                next = Instant::now() + CLUSTER_FIRST + backoff.next_wait();
            }
        }
    }
}

/// Keeps the metrics and the log of waiting events up to date, even while Kafka is unavailable or a probe is slow.
pub async fn watch_holds<P, H: Holds>(relay: Rc<Relay<P>>, mut holds: H) {
    let outage = Availability::new("metrics of held topics, blocked keys and pauses", "backlog_not_measured")
        .described("outdated", "up to date again");
    let mut reported = Reported::default();
    loop {
        // A worker counts them after its cycle, but probes change them too.
        relay.stats.unsettled.set(relay.memory.acknowledged.borrow().len() as i64);
        note(&outage, refresh(&relay, &mut holds, &mut reported).await);
        sleep(HOLDS_EVERY).await;
    }
}

#[derive(Default)]
struct Reported {
    pauses: Vec<Pause>,
    /// The set of holds that the pauses belong to. As long as it is the same, the pauses are too.
    pauses_version: Option<i64>,
    /// The version of the set of holds of which topics were named, and when.
    topics: Option<(i64, Instant)>,
    /// When hidden rows were last looked up.
    hidden_at: Option<Instant>,
}

async fn refresh<P, H: Holds>(
    relay: &Relay<P>,
    holds: &mut H,
    reported: &mut Reported,
) -> Result<(), PostgresFault> {
    let asked = Instant::now();
    let waiting = holds.count().await?;
    relay.stats.held_topics.set(waiting.topics);
    if waiting.topics == 0 {
        relay.health.locks.worked(PROBER); // nothing is left to probe
    }
    relay.stats.blocked_keys.set(waiting.keys);
    relay.stats.count_pauses(waiting.paused);
    relay.memory.nothing_held_at.set(waiting.is_empty().then_some(waiting.hold_version));
    // The server sorts all holds for the sample. If they do not change, the reasons change seldom.
    let is_named = |(version, at): (i64, Instant)| {
        waiting.topics > TOPICS_NAMED_MAX as i64
            && version == waiting.hold_version
            && at.elapsed() < NAMED_FOR
    };
    if !reported.topics.is_some_and(is_named) {
        reported.topics = Some((waiting.hold_version, asked));
        let held = if waiting.topics == 0 { Vec::new() } else { holds.held().await? };
        relay.stats.name_held(&held);
        if held.len() as i64 == waiting.topics {
            relay.memory.holds.only(asked, &held);
        }
    }
    if reported.pauses_version != Some(waiting.hold_version) {
        let pauses = if waiting.paused.total() == 0 { Vec::new() } else { holds.pauses().await? };
        log_pauses(&reported.pauses, &pauses);
        (reported.pauses, reported.pauses_version) = (pauses, Some(waiting.hold_version));
    }
    let (ids, event_ids) = relay.memory.acknowledged.borrow().hidden();
    if !ids.is_empty() && reported.hidden_at.is_none_or(|at| at.elapsed() >= NAMED_FOR) {
        reported.hidden_at = Some(asked);
        let unsent = holds.unsent(&ids, &event_ids).await?;
        relay.memory.acknowledged.borrow_mut().forget_settled(&ids, &event_ids, &unsent);
    }
    Ok(())
}

fn note(outage: &Availability, done: Result<(), PostgresFault>) {
    match done {
        Ok(()) => outage.worked(0),
        // The scout fails the same way and logs it.
        Err(fault) if fault.kind == FaultKind::Unavailable => tracing::debug!("{fault}"),
        Err(fault) => outage.failed(0, &fault, ADVICE),
    }
}

/// Probes held topics when they are due, until the relay stops. [`watch_holds`] finds out whether there are any.
pub async fn keep_holds<P: Publisher, H: Holds, O: Outbox>(relay: Rc<Relay<P>>, holds: H, outbox: O) {
    let outage =
        Availability::new("probes of held topics", "probes_failed").described("failing", "working again");
    let mut probes = Probes::new(&relay, holds, outbox);
    while !relay.lanes.board.is_stopped() {
        if relay.kafka.gate.is_open() {
            fail_point::reach("probing-holds").await;
            note(&outage, probes.round().await);
        } else {
            probes.wait_for_kafka(&outage).await;
            probes.make_all_due = true; // because Kafka is available again
        }
        tokio::select! {
            biased;
            () = relay.lanes.board.stopped() => {}
            () = sleep(HOLDS_EVERY) => {}
        }
    }
    note(&outage, probes.end().await);
}

/// Topics per round. One claim locks the lanes of all of them.
const PROBED_TOPICS_MAX: usize = 64;
/// Producers that may wait for late acks. At the limit, no further topics are probed.
const LATE_MAX: usize = 4;
/// How long a producer may be silent once `LATE_MAX` producers wait for late acks. Otherwise `publish_timeout` applies. Slow
/// brokers still send acks from time to time: a producer that gives up too early causes duplicates.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// How often a relay that stops looks for late acks.
const LATE_EVERY: Duration = Duration::from_millis(50);
/// How often the lease of a topic whose ack is late, or whose row is not recorded yet, is renewed.
const RENEW_LEASES_EVERY: Duration = Duration::from_secs(2);
/// The minimum time between two releases that make all other topics due, and what each held topic adds to it.
const MAKE_DUE_EVERY: Duration = Duration::from_secs(2);
const MAKE_DUE_PER_TOPIC: Duration = Duration::from_millis(2);
/// Topics per round while so many are held that they are compared with the list of all topics.
const LISTED_TOPICS_MAX: usize = 1_024;
/// The minimum time between two lists, and how much longer than the request itself it is: the answer has all topics of the
/// cluster. At most [`LIST_LATEST`], because held topics are not probed meanwhile.
const LIST_EVERY: Duration = Duration::from_secs(2);
const LIST_SHARE: u32 = 50;
const LIST_LATEST: Duration = Duration::from_secs(30);
/// The longest time for which topics are probed one at a time. Another relay may have probed those that are missing.
const ALONE_FOR: Duration = Duration::from_secs(60);
/// How long a topic is left out of the search for events after that search has timed out. It walks all rows that wait.
const SLOW_FOR: Duration = Duration::from_secs(600);

struct Probes<'a, P: Publisher, H, O: Outbox> {
    relay: &'a Relay<P>,
    holds: H,
    outbox: O,
    /// The one of the last probes, if no row is in flight on it.
    producer: Option<P::Producer>,
    /// The version of the settings that `producer` was opened with.
    reloads: u64,
    late: Vec<Flight<P::Producer, O::Event>>,
    /// The leases of their topics are kept until they are recorded, because another relay would send the rows again.
    unsettled: Vec<Unsettled<O::Event>>,
    /// The last settlement of such rows recorded only a part or failed, perhaps because of one row: the next has a single row.
    settles_one: bool,
    settle_at: Instant,
    /// When the leases of topics in `late` and `unsettled` were last renewed.
    renewed_at: Option<Instant>,
    /// Leased topics without a result so far. Without one at the end, for example because another relay has locked the lane,
    /// their leases are given back.
    unfinished: Vec<String>,
    /// The results that are not recorded yet.
    found: ProbeResults,
    lane_rests: [Option<Instant>; LANES],
    made_due_at: Option<Instant>,
    make_all_due: bool,
    /// Topics that must be probed alone, because Postgres could not read the rows of several together, and since when. They become
    /// due together again. Until all of them were probed, each topic is probed alone.
    alone: HashSet<String>,
    alone_since: Instant,
    /// Topics for which Postgres found no event in time, and until when they are not searched for.
    slow: HashMap<String, Instant>,
    /// The topics of the cluster, if so many are held that each round begins with a list of them.
    listed: Option<HashSet<String>>,
    list_at: Instant,
}

impl<'a, P: Publisher, H: Holds, O: Outbox> Probes<'a, P, H, O> {
    fn new(relay: &'a Relay<P>, holds: H, outbox: O) -> Probes<'a, P, H, O> {
        Probes {
            relay,
            holds,
            outbox,
            producer: None,
            reloads: 0,
            late: Vec::new(),
            unsettled: Vec::new(),
            settles_one: false,
            settle_at: Instant::now(),
            renewed_at: None,
            unfinished: Vec::new(),
            found: ProbeResults::default(),
            lane_rests: [None; LANES],
            made_due_at: None,
            make_all_due: false,
            alone: HashSet::new(),
            alone_since: Instant::now(),
            slow: HashMap::new(),
            listed: None,
            list_at: Instant::now(),
        }
    }

    /// Stops waiting for acks, because Kafka is unavailable.
    fn give_up(&mut self) {
        for mut flight in self.late.drain(..) {
            self.unsettled.extend(flight.take_acknowledged(&self.relay.memory));
            self.unfinished.extend(flight.topics().map(str::to_owned));
            flight.abandon(&self.relay.memory);
        }
        self.producer = None;
    }

    /// While Kafka is unavailable, rows that it has acknowledged are recorded all the same.
    async fn wait_for_kafka(&mut self, outage: &Availability) {
        self.give_up();
        while !self.unsettled.is_empty() && !self.relay.kafka.gate.is_open() {
            let renewed = self.take_in_late().await;
            note(outage, renewed.and(self.settle_late().await));
            tokio::select! {
                biased;
                () = self.relay.opened() => return,
                () = sleep(HOLDS_EVERY) => {}
            }
        }
        self.relay.opened().await;
    }

    /// Processes late acks, then probes every topic that is due once.
    async fn round(&mut self) -> Result<(), PostgresFault> {
        let relay = self.relay;
        self.give_back().await?;
        self.listed = None;
        let mut settled = Ok(());
        loop {
            let taken = self.take_in_late().await;
            settled = settled.and(self.settle_late().await);
            taken?;
            if relay.stats.held_topics.get() == 0 {
                self.producer = None;
                self.slow.clear();
                return settled;
            }
            if std::mem::take(&mut self.make_all_due) {
                self.holds.make_due().await?;
            }
            let waits = self.late.len() >= LATE_MAX || self.unsettled.len() >= PROBED_TOPICS_MAX;
            if waits || relay.lanes.board.is_stopped() || !self.may_probe().await {
                return settled;
            }
            let together = if self.listed.is_some() { LISTED_TOPICS_MAX } else { PROBED_TOPICS_MAX };
            if self.alone_since.elapsed() > ALONE_FOR {
                self.alone.clear();
            }
            let due = self.holds.due(if self.alone.is_empty() { together } else { 1 }).await?;
            due.iter().for_each(|due| _ = self.alone.remove(&due.topic));
            self.unfinished.extend(due.iter().map(|due| due.topic.clone()));
            if due.is_empty() || !relay.kafka.gate.is_open() {
                return settled;
            }
            let probed = self.probe(due).await;
            probed.and(self.conclude().await)?;
        }
    }

    /// Waits for late acks and records them, so that another relay does not publish their rows again.
    async fn end(&mut self) -> Result<(), PostgresFault> {
        let until = Instant::now() + ANSWER_WITHIN;
        loop {
            if !self.relay.kafka.gate.is_open() {
                self.give_up();
            }
            let taken = self.take_in_late().await;
            let done = taken.and(self.settle_late().await);
            if Instant::now() >= until || self.late.is_empty() && self.unsettled.is_empty() {
                return done;
            }
            sleep(if self.unsettled.is_empty() { LATE_EVERY } else { HOLDS_EVERY }).await;
        }
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
        self.list_at = Instant::now() + (LIST_SHARE * begun.elapsed()).clamp(LIST_EVERY, LIST_LATEST);
        true
    }

    /// Records the results of probes in the database.
    async fn conclude(&mut self) -> Result<(), PostgresFault> {
        let (relay, found) = (self.relay, std::mem::take(&mut self.found));
        if !found.works.is_empty() {
            self.holds.release(&named(&found.works)).await?;
            self.finished(found.works.iter().map(String::as_str));
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
            self.finished(found.fails.iter().map(|(topic, _)| topic.as_str()));
        }
        self.give_back().await
    }

    /// Gives back the leases of topics without a result, unless they are kept, so that other relays can probe them at once.
    async fn give_back(&mut self) -> Result<(), PostgresFault> {
        let kept = self.kept();
        self.unfinished.retain(|topic| !kept.contains(topic));
        if !self.unfinished.is_empty() {
            self.holds.retry_soon(&named(&self.unfinished)).await?;
            self.unfinished.clear();
        }
        Ok(())
    }

    fn finished<'t>(&mut self, topics: impl Iterator<Item = &'t str>) {
        let topics: HashSet<&str> = topics.collect();
        self.unfinished.retain(|topic| !topics.contains(topic.as_str()));
    }

    async fn probe(&mut self, mut due: Vec<Due>) -> Result<(), PostgresFault> {
        // The lease may have expired while an ack was late.
        let kept = self.kept();
        due.retain(|due| !kept.contains(&due.topic));
        let mut due = self.of_valid_names(due).await?;
        self.leave_out(&mut due);
        if due.is_empty() {
            return Ok(());
        }
        let producer = match self.producer().await {
            Ok(producer) => producer,
            Err(failure) => {
                self.found.fails.extend(due.into_iter().map(|due| (due.topic, failure.clone())));
                return Ok(());
            }
        };
        let known = leaders(&producer, due, &mut self.found).await;
        self.renew_leases().await?;
        let asked: Vec<Due> = known.iter().map(|(due, _)| due.clone()).collect();
        let Some(examples) = self.examples(&asked).await? else {
            self.producer = Some(producer);
            return Ok(());
        };
        let mut candidates = Vec::new();
        let rests = |lane: Lane| self.lane_rests[lane.index()].is_some_and(|until| until > Instant::now());
        for ((due, leaders), example) in known.into_iter().zip(examples) {
            match example {
                Some(example) if rests(example.lane) => {}
                Some(example) => candidates.push(Candidate::new(due, example, &leaders)),
                None => self.found.works.push(due.topic),
            }
        }
        let candidates = reachable(&producer, candidates, &mut self.found).await;
        let topics: Vec<String> = candidates.iter().map(|candidate| candidate.due.topic.clone()).collect();
        let mut flight = Flight::new(producer);
        let (outbox, found, lane_rests) = (&mut self.outbox, &mut self.found, &mut self.lane_rests);
        let done = match flight.publish(self.relay, outbox, candidates, found, lane_rests).await {
            // Postgres cannot read a row. Several topics are probed one at a time. A single topic is released, because only a
            // worker's claim can decide about an unreadable row.
            Err(fault) if fault.kind == FaultKind::Data && flight.unsettled.is_empty() => {
                match <[String; 1]>::try_from(topics) {
                    Ok([topic]) => self.found.works.push(topic),
                    Err(topics) => self.probe_alone(topics.into_iter()),
                }
                Ok(())
            }
            done => done,
        };
        let kept = self.keep_late(flight).await;
        done.and(kept)
    }

    /// Handles the topics whose names are invalid, and returns the others. Such a topic is released when no row waits for it,
    /// because its rows were corrected or deleted.
    async fn of_valid_names(&mut self, due: Vec<Due>) -> Result<Vec<Due>, PostgresFault> {
        let (valid, mut invalid): (Vec<Due>, Vec<Due>) =
            due.into_iter().partition(|due| check_topic(&due.topic).is_ok());
        self.leave_out_slow(&mut invalid);
        let Some(examples) = self.examples(&invalid).await? else { return Ok(valid) };
        for (Due { topic, .. }, example) in invalid.into_iter().zip(examples) {
            match (example, check_topic(&topic)) {
                (Some(_), Err(error)) => {
                    self.found.fails.push((topic, INVALID_TOPIC_NAME.failure(error.to_string())));
                }
                _ => self.found.works.push(topic),
            }
        }
        Ok(valid)
    }

    /// Removes the topics that need no probe now: missing ones, those that are not searched for, and those beyond a claim.
    fn leave_out(&mut self, due: &mut Vec<Due>) {
        if let Some(listed) = &self.listed {
            let missing = due.extract_if(.., |due| !listed.contains(&due.topic));
            self.found.fails.extend(missing.map(|Due { topic, .. }| {
                let failure = UNKNOWN_TOPIC.failure(not_listed(&topic));
                (topic, failure)
            }));
        }
        self.leave_out_slow(due);
        due.truncate(PROBED_TOPICS_MAX);
    }

    fn leave_out_slow(&mut self, due: &mut Vec<Due>) {
        let now = Instant::now();
        self.slow.retain(|_, until| *until > now);
        let slow = due.extract_if(.., |due| self.slow.contains_key(&due.topic));
        self.found.fails.extend(slow.map(|due| (due.topic, KafkaFailure::unknown(NO_EVENT_FOUND))));
    }

    /// Searches for an event of each topic. `None` if the search has failed: several topics are searched for one at a time, and a
    /// single one is left out for a while, because each search takes until its timeout.
    async fn examples(&mut self, due: &[Due]) -> Result<Option<Vec<Option<ExampleRow>>>, PostgresFault> {
        if due.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let fault = match self.holds.examples(due).await {
            Err(fault) if matches!(fault.kind, FaultKind::TimedOut | FaultKind::Data) => fault,
            examples => return examples.map(Some),
        };
        if let [Due { topic, .. }] = due {
            tracing::debug!(topic, "no event to probe the topic with: {fault}");
            self.found.fails.push((topic.clone(), KafkaFailure::unknown(NO_EVENT_FOUND)));
            self.slow.insert(topic.clone(), Instant::now() + SLOW_FOR);
        } else {
            self.probe_alone(due.iter().map(|due| due.topic.clone()));
        }
        Ok(None)
    }

    fn probe_alone(&mut self, topics: impl Iterator<Item = String>) {
        self.alone.extend(topics);
        self.alone_since = Instant::now();
    }

    /// The producer of the last round, or a new one if that one failed, is worn, or the settings changed.
    async fn producer(&mut self) -> Result<P::Producer, KafkaFailure> {
        let relay = self.relay;
        let reloads = relay.settings.reloads();
        let renewed = std::mem::replace(&mut self.reloads, reloads) != reloads;
        let usable = |producer: &P::Producer| !renewed && !producer.has_failed() && !producer.is_worn();
        if let Some(producer) = self.producer.take().filter(usable) {
            return Ok(producer);
        }
        relay.kafka.publisher.open_for_probes().await
    }

    /// Runs after the lanes were released. Keeps the producer, or keeps waiting for late acks.
    async fn keep_late(&mut self, mut flight: Flight<P::Producer, O::Event>) -> Result<(), PostgresFault> {
        flight.take_failed(&self.relay.memory, &mut self.found);
        let keeps_leases = !flight.is_done() || !flight.unsettled.is_empty();
        self.unsettled.append(&mut flight.unsettled);
        if flight.is_done() {
            self.producer = Some(flight.producer).filter(|producer| !producer.has_failed());
        } else {
            self.late.push(flight);
        }
        if !keeps_leases {
            return Ok(());
        }
        // The lease of a new one began before the topic was looked up.
        self.renewed_at = None;
        self.renew_leases().await
    }

    /// The topics whose leases are kept.
    fn kept(&self) -> BTreeSet<String> {
        let in_flight = self.late.iter().flat_map(Flight::topics);
        in_flight.chain(self.unsettled.iter().map(|late| late.topic.as_str())).map(str::to_owned).collect()
    }

    /// Renews the leases that are kept, unless that was done a moment ago.
    async fn renew_leases(&mut self) -> Result<(), PostgresFault> {
        let kept = self.kept();
        if kept.is_empty() || self.renewed_at.is_some_and(|at| at.elapsed() < RENEW_LEASES_EVERY) {
            return Ok(());
        }
        self.renewed_at = Some(Instant::now());
        self.holds.renew_leases(&kept.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Processes reports that arrived since the lanes were released, and gives up on acks that took too long.
    async fn take_in_late(&mut self) -> Result<(), PostgresFault> {
        let relay = self.relay;
        let within =
            if self.late.len() < LATE_MAX { relay.settings.limits().publish_timeout } else { ANSWER_WITHIN };
        self.late.retain_mut(|flight| {
            let acknowledged = flight.take_acknowledged(&relay.memory);
            if !acknowledged.is_empty() {
                // The brokers are slow but available, so no lane has to rest.
                self.lane_rests = [None; LANES];
            }
            self.unsettled.extend(acknowledged);
            flight.take_failed(&relay.memory, &mut self.found);
            let gives_up = flight.silent_since.elapsed() >= within;
            if gives_up {
                let error = format!("the leader has acknowledged no probe for {within:?}");
                let fails = flight.topics().map(|topic| (topic.to_owned(), STUCK.failure(&error)));
                self.found.fails.extend(fails);
                flight.abandon(&relay.memory);
            }
            !flight.is_done() && !gives_up
        });
        let renewed = self.renew_leases().await;
        renewed.and(self.conclude().await)
    }

    /// Settles the rows whose acks came late, and those that could not be settled at once.
    async fn settle_late(&mut self) -> Result<(), PostgresFault> {
        if self.unsettled.is_empty() || Instant::now() < self.settle_at {
            return Ok(());
        }
        let (count, patience) =
            if self.settles_one { (1, LOCKED_FOR) } else { (self.unsettled.len(), LANES_WITHIN) };
        let mut tried: Vec<_> = self.unsettled.drain(..count).collect();
        // Without a result, the topic is probed again.
        self.unfinished.extend(tried.iter().map(|late| late.topic.clone()));
        let settled = settle_late(self.relay, &mut self.outbox, &mut tried, patience, &mut self.found).await;
        let failed = !tried.is_empty();
        self.settles_one = failed || self.settles_one && !self.unsettled.is_empty();
        if failed {
            self.settle_at = Instant::now() + HOLDS_EVERY;
        }
        self.unsettled.append(&mut tried); // behind the others, which are tried next
        settled.and(self.conclude().await)
    }
}

const NO_EVENT_FOUND: &str = "PostgreSQL found no event of the topic in time to probe it with";

fn named(topics: &[String]) -> Vec<&str> {
    topics.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests;
