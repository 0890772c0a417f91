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

use crate::memory::Streaks;
use crate::outbox::TopicHold;
use crate::partition::{self, Counts};
use crate::publisher::LISTED_FROM;
use crate::reason::{REJECTS_EVERYTHING, SMALLER_BATCHES, STUCK, UNKNOWN_TOPIC, not_listed};
use crate::topic::{self, TopicRules};
use crate::{
    Batch, DeliveryReport, Event, FailureKind, Fate, KafkaFailure, NotSent, Producer, Rejection, fail_point,
};
use futures_util::{StreamExt, stream};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a partition stays primed. It must be shorter than `producer.id.expiration.ms` (1 day by default), after which
/// brokers forget a producer ID.
const PRIMED_FOR: Duration = Duration::from_secs(600);
/// How long a batch may be sent until its claim limits it.
const ALWAYS: Duration = Duration::from_secs(365 * 86_400);

/// The longest name of a topic that is held for its rows, in bytes. A claim cuts longer values of a large row, and the names of
/// held topics have an index.
const HELD_NAME_MAX: usize = 299;

/// The maximum number of topics, and of routes, that a session remembers between two batches.
const TOPICS_KEPT: usize = 4_096;
/// The maximum size of the types whose routes it remembers.
const ROUTE_BYTES_KEPT: usize = 1 << 20;

/// How many topics are looked up at once. One by one, a thousand of them would take seconds.
const LOOKUPS_MAX: usize = 16;
/// The maximum number of topics to look up before the next row is sent. Otherwise the lookups of ten thousand of them could take
/// longer than the claim lasts, and no claim would send a row.
const LOOKUPS_BEFORE_ROWS: usize = 512;

pub struct Session<P> {
    pub(crate) producer: P,
    topics: Vec<Topic>,
    topics_by_name: HashMap<String, usize>,
    /// Where rows go, by what their topic depends on.
    routes: HashMap<Vec<u8>, Route>,
    /// Where each row of the current batch goes, as far as it is known.
    destinations: Vec<Option<Destination>>,
    /// Rows that wait for the first row of their partition.
    deferred: Vec<u32>,
    /// The partitions of the current batch in which a large row has to be judged. Kafka refuses a whole request because of one
    /// record that is too large for its topic, so such a row would fail the session. Later rows of them wait for the next batch.
    with_large_row: Vec<Destination>,
    streaks: Streaks,
    /// What all sessions know about the partitions of topics, and how many changes this one has seen.
    counts: Rc<Counts>,
    changes_seen: u64,
    /// Rows that were sent and whose report was not processed yet.
    unreported: usize,
    reports: Vec<DeliveryReport>,
    /// The time of the current `send`, read once for all rows.
    now: Instant,
    /// When the first row of the current batch was sent.
    pub(crate) publishing_since: Option<Instant>,
    pub(crate) reported_at: Option<Instant>,
    pub(crate) opened_at: Instant,
    pub(crate) failure: Option<KafkaFailure>,
    /// How long the server surely keeps the claim of the batch. Afterwards, and for the rest of the batch, nothing is sent: another
    /// relay may send the rows, and no row may overtake one that was left out. `None` if that time is over or the claim is lost.
    pub(crate) sends_until: Rc<Cell<Option<Instant>>>,
}

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

/// Where rows go whose topic depends on the same.
#[derive(Clone)]
struct Route {
    topic: usize,
    /// Why Kafka or the configuration allows no topic of this name, if so.
    invalid: Option<Rejection>,
}

impl<P: Producer> Session<P> {
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
            with_large_row: Vec::new(),
            streaks: Streaks::default(),
            unreported: 0,
            reports: Vec::new(),
            now: Instant::now(),
            publishing_since: None,
            reported_at: None,
            opened_at: Instant::now(),
            failure: None,
            sends_until: Rc::default(),
        }
    }

    /// Begins a batch. Held topics are looked up again, because the claim reads their rows only after the hold has ended.
    ///
    /// # Panics
    ///
    /// If reports of the last batch are outstanding: they would be mistaken for those of this one.
    pub fn begin(&mut self, streaks: &Streaks) {
        assert!(self.unreported == 0 && self.deferred.is_empty(), "a batch began before the last one ended");
        self.destinations.clear();
        self.publishing_since = None;
        self.with_large_row.clear();
        self.streaks = streaks.clone();
        self.now = Instant::now();
        self.sends_until.set(Some(self.now + ALWAYS));
        self.look_up_due();
        self.forget_topics();
    }

    /// Closes the session: nothing more is sent.
    pub(crate) fn close(&mut self, failure: KafkaFailure) {
        self.failure.get_or_insert(failure);
    }

    /// Sends the open rows from this index on, in order, and stops at the first failure. Waits only to look up topics.
    pub async fn send<E: Event>(&mut self, topics: &TopicRules, batch: &mut Batch<E>, from: usize) {
        self.destinations.resize(batch.len(), None);
        self.now = Instant::now();
        let (mut buffer, mut has_listed) = (Vec::new(), false);
        for index in from..batch.len() {
            if self.producer.has_failed() {
                self.absorb(batch);
            }
            if self.failure.is_some() {
                return;
            }
            if self.sends_until.get().is_none() {
                break;
            }
            if batch.fate(index) != Fate::Open || batch.is_blocked(index) {
                continue;
            }
            let Route { topic, invalid } = loop {
                match self.routes.get(topic::dependency(topics, &batch.rows()[index], &mut buffer)) {
                    Some(route) => break route.clone(),
                    None => {
                        if let Err(failure) = self.find_routes(topics, batch, index, &mut has_listed).await {
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

    pub(crate) fn may_send(&self) -> bool {
        let until = self.sends_until.get().filter(|until| Instant::now() < *until);
        self.sends_until.set(until);
        until.is_some()
    }

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
            self.producer.wait_until_quiet(!self.deferred.is_empty()).await;
        }
    }

    /// Processes the reports that have arrived, and sends the rows that waited for the first row of their partition.
    pub(crate) fn absorb<E: Event>(&mut self, batch: &mut Batch<E>) {
        let mut reports = std::mem::take(&mut self.reports);
        self.producer.take_reports(&mut reports);
        if !reports.is_empty() {
            self.reported_at = Some(Instant::now());
        }
        let mut primed = false;
        for DeliveryReport { index, outcome } in reports.drain(..) {
            let index = index as usize;
            self.unreported -= 1;
            match outcome {
                Ok(()) => {
                    batch.set(index, Fate::Acknowledged);
                    primed |= self.prime(index);
                }
                Err(failure) => self.report_failure(batch, index, failure),
            }
        }
        self.reports = reports;
        if let Some(error) = self.producer.fatal_error().filter(|_| self.producer.has_failed()) {
            self.close(error);
        }
        if primed && self.failure.is_none() {
            for index in std::mem::take(&mut self.deferred) {
                self.send_row(batch, index as usize);
            }
        }
    }

    fn report_failure<E: Event>(&mut self, batch: &mut Batch<E>, index: usize, failure: KafkaFailure) {
        batch.set(index, Fate::Open);
        match (failure.kind, self.destinations[index]) {
            (FailureKind::Row, _) => batch.set(index, Fate::Suspect),
            (FailureKind::Topic, Some(destination)) => self.hold(destination, failure.clone().into()),
            _ => {}
        }
        self.close(failure);
    }

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
        if !self.may_send() || batch.is_blocked(index) || self.with_large_row.contains(&destination) {
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
        // Earlier rows of the partition must be sent before, because a large row is judged only after they are acknowledged. This
        // comes after the check for `Sent`, because deferred rows precede this one.
        if self.streaks.refuse_size(&topic.name, batch.rows()[index].size()) {
            self.with_large_row.push(destination);
            return batch.set(index, Fate::Suspect);
        }
        self.publishing_since.get_or_insert(self.now);
        match self.producer.send(index as u32, &topic.name, destination.partition, &batch.rows()[index]) {
            Ok(()) => {
                self.unreported += 1;
                batch.set(index, Fate::InFlight);
                self.streaks.sent(&topic.name);
                if matches!(priming, Priming::Fresh) {
                    *priming = Priming::Sent;
                }
            }
            Err(NotSent::Row(rejection)) => self.reject(batch, index, destination.topic as usize, rejection),
            Err(NotSent::Session(failure)) => self.close(failure),
        }
    }

    /// Rejects a row that cannot become a record. After too many of them in a row, the cause is probably the writer, so this
    /// holds their topic instead.
    fn reject<E: Event>(&mut self, batch: &mut Batch<E>, index: usize, topic: usize, rejection: Rejection) {
        let Topic { name, state, .. } = &mut self.topics[topic];
        let limit = batch.invalid_before_hold;
        let may_hold = limit < usize::MAX && name.len() <= HELD_NAME_MAX;
        if !may_hold || self.streaks.refused_unsent(name, batch.rows()[index].event_id()) <= limit {
            return batch.rejected(index, name, rejection);
        }
        let error =
            format!("more than {limit} events in a row were rejected before sending: {}", rejection.error);
        *state = TopicState::Held(REJECTS_EVERYTHING.rejection(error));
        let destinations = &self.destinations;
        let is_held = |index: u32| destinations[index as usize].is_some_and(|to| to.topic as usize == topic);
        self.deferred.retain(|index| !is_held(*index));
    }

    pub(crate) fn destination(&self, index: usize) -> Option<Destination> {
        self.destinations.get(index).copied().flatten()
    }

    pub(crate) fn topic(&self, destination: Destination) -> &str {
        &self.topics[destination.topic as usize].name
    }

    /// Finds unknown routes of this row and later rows: all of them, or those of [`LOOKUPS_BEFORE_ROWS`] topics. Only the first call
    /// for a batch lists all topics.
    async fn find_routes<E: Event>(
        &mut self,
        topics: &TopicRules,
        batch: &Batch<E>,
        from: usize,
        has_listed: &mut bool,
    ) -> Result<(), KafkaFailure> {
        let (mut unknown, mut buffer) = (Vec::new(), Vec::new());
        for row in &batch.rows()[from..] {
            let dependency = topic::dependency(topics, row, &mut buffer);
            if !self.routes.contains_key(dependency) {
                let route = self.route(topics, row);
                let state = &self.topics[route.topic].state;
                let looks_up =
                    route.invalid.is_none() && matches!(state, TopicState::Unknown | TopicState::Due(_));
                unknown.extend(looks_up.then_some(route.topic));
                self.routes.insert(dependency.to_vec(), route);
            }
        }
        let mut seen = HashSet::new();
        unknown.retain(|topic| seen.insert(*topic)); // several types may share a topic
        if unknown.len() >= LISTED_FROM
            && !std::mem::replace(has_listed, true)
            && let Some(listed) = self.producer.list_topics().await
        {
            unknown.retain(|topic| {
                let topic = &mut self.topics[*topic];
                let exists = listed.contains(&topic.name);
                if !exists {
                    topic.state = TopicState::Held(UNKNOWN_TOPIC.rejection(not_listed(&topic.name)));
                }
                exists
            });
        }
        let later: HashSet<usize> = unknown.drain(unknown.len().min(LOOKUPS_BEFORE_ROWS)..).collect();
        if !later.is_empty() {
            self.routes.retain(|_, route| !later.contains(&route.topic));
        }
        let mut found = Vec::new();
        {
            let (producer, topics) = (&self.producer, &self.topics);
            let lookup = async |topic: usize| (topic, producer.lookup(&topics[topic].name).await);
            let mut lookups = stream::iter(unknown).map(lookup).buffer_unordered(LOOKUPS_MAX);
            while let Some((topic, partitions)) = lookups.next().await {
                let ends = partitions.as_ref().is_err_and(|failure| {
                    // Each topic has its own limit for requests.
                    failure.reason != SMALLER_BATCHES.word && closes(failure, &topics[topic].state)
                });
                found.push((topic, partitions));
                if ends {
                    break; // the others, which may take seconds each, would fail too
                }
            }
        }
        for (topic, partitions) in found {
            self.topics[topic].state = match partitions {
                Ok(partitions) => self.open(topic, partitions),
                Err(failure) if matches!(failure.kind, FailureKind::Topic | FailureKind::Row) => {
                    TopicState::Held(failure.into())
                }
                Err(failure) if closes(&failure, &self.topics[topic].state) => return Err(failure),
                // It is still in the metadata of the producer. If the connection is lost, sending shows it.
                Err(_) => match std::mem::replace(&mut self.topics[topic].state, TopicState::Unknown) {
                    TopicState::Due(primed) => TopicState::Open(primed),
                    state => state,
                },
            };
        }
        Ok(())
    }

    /// The state of a topic that was found with this number of partitions. If the number is the same as before, its
    /// partitions stay primed.
    fn open(&mut self, topic: usize, partitions: u32) -> TopicState {
        let topic = &mut self.topics[topic];
        if self.counts.found(&topic.name, partitions) {
            topic.looked_up_at = Some(Instant::now());
        }
        match std::mem::replace(&mut topic.state, TopicState::Unknown) {
            TopicState::Due(primed) if primed.len() == partitions as usize => TopicState::Open(primed),
            _ => TopicState::Open(vec![Priming::Fresh; partitions as usize]),
        }
    }

    /// Makes the session look up topics again: those that it looked up a while ago, and those in which another session has
    /// found a change. Only between two batches, when no row is in flight.
    fn look_up_due(&mut self) {
        let changed =
            self.counts.changes() != std::mem::replace(&mut self.changes_seen, self.counts.changes());
        for topic in &mut self.topics {
            let is_due = topic.looked_up_at.is_none_or(|at| {
                self.counts.is_due(at, self.now) || changed && self.counts.changed_since(&topic.name, at)
            });
            if let (true, TopicState::Open(primed)) = (is_due, &mut topic.state) {
                topic.state = TopicState::Due(std::mem::take(primed));
            }
        }
    }

    /// Forgets the topics that are not open and, if there are too many, the least recently used ones. A forgotten topic is
    /// looked up and primed again. Only between two batches, when no [`Destination`] refers to a topic by its index.
    fn forget_topics(&mut self) {
        let is_open = |at: &usize| matches!(self.topics[*at].state, TopicState::Open(_) | TopicState::Due(_));
        let mut kept: Vec<usize> = (0..self.topics.len()).filter(is_open).collect();
        if kept.len() > TOPICS_KEPT {
            kept.sort_by_key(|at| Reverse(self.topics[*at].used_at));
            kept.truncate(TOPICS_KEPT);
        }
        let mut moved_to = vec![None; self.topics.len()];
        kept.iter().enumerate().for_each(|(to, from)| moved_to[*from] = Some(to));
        if kept.len() < self.topics.len() {
            let mut topics: Vec<Option<Topic>> = self.topics.drain(..).map(Some).collect();
            self.topics.extend(kept.into_iter().filter_map(|at| topics[at].take()));
            let named = self.topics.iter().enumerate().map(|(at, topic)| (topic.name.clone(), at));
            self.topics_by_name = named.collect();
        }
        let topics = &self.topics;
        self.routes.retain(|_, Route { topic, invalid }| {
            let kept = moved_to[*topic].filter(|to| matches!(topics[*to].state, TopicState::Open(_)));
            invalid.is_none() && kept.map(|to| *topic = to).is_some()
        });
        // Many types may share a topic, and a type may be long. Their routes are found again without asking Kafka.
        let bytes: usize = self.routes.keys().map(Vec::len).sum();
        if self.routes.len() > TOPICS_KEPT || bytes > ROUTE_BYTES_KEPT {
            self.routes.clear();
        }
    }

    fn route<E: Event>(&mut self, topics: &TopicRules, row: &E) -> Route {
        let name = topic::name(topics, row);
        let invalid = topic::check(topics, row, &name).err();
        let topic = *self.topics_by_name.entry(name.clone()).or_insert(self.topics.len());
        if topic == self.topics.len() {
            let used_at = self.now;
            self.topics.push(Topic { name, state: TopicState::Unknown, used_at, looked_up_at: None });
        }
        Route { topic, invalid }
    }

    /// The topics of the current batch to hold, with the reason and the first unsent row of each.
    pub(crate) fn held<'a, E: Event>(&'a self, batch: &'a Batch<E>) -> Vec<TopicHold<'a, E>> {
        let mut seen = vec![false; self.topics.len()];
        let mut held = Vec::new();
        if self.topics.iter().all(|topic| !matches!(topic.state, TopicState::Held(_))) {
            return held;
        }
        for (index, destination) in self.destinations.iter().enumerate() {
            let Some(destination) = destination else { continue };
            let topic = &self.topics[destination.topic as usize];
            let TopicState::Held(why) = &topic.state else { continue };
            let waits = batch.fate(index).is_undecided() || batch.fate(index) == Fate::Suspect;
            if waits && !std::mem::replace(&mut seen[destination.topic as usize], true) {
                held.push(TopicHold { topic: &topic.name, why, example: &batch.rows()[index] });
            }
        }
        held
    }

    /// The partitions that have rows of this fate among the first `rows`.
    fn with<E: Event>(&self, fate: Fate, batch: &Batch<E>, rows: usize) -> HashSet<Destination> {
        let destinations = self.destinations.iter().enumerate().take(rows);
        destinations.filter(|(index, _)| batch.fate(*index) == fate).filter_map(|(_, place)| *place).collect()
    }

    /// Whether rows of a partition without rows in flight, and other than `judged`, were acknowledged in this batch.
    pub(crate) fn others_work<E: Event>(&self, batch: &Batch<E>, judged: Option<Destination>) -> bool {
        let mut silent = self.with(Fate::InFlight, batch, batch.len());
        silent.extend(judged);
        !self.with(Fate::Acknowledged, batch, batch.len()).is_subset(&silent)
    }

    /// Called when none of the first `rows` was reported for `patience` although the cluster answers and other partitions
    /// work. Closes the session, holds the topics of the partitions in which some of these rows are in flight, and returns
    /// true. Rows that were not sent are ignored.
    pub(crate) fn hold_stuck<E: Event>(&mut self, batch: &Batch<E>, rows: usize, patience: Duration) -> bool {
        let mut silent = self.with(Fate::InFlight, batch, rows);
        silent.retain(|place| matches!(self.topics[place.topic as usize].state, TopicState::Open(_)));
        if self.failure.is_some() || silent.is_empty() {
            return false;
        }
        let waited = format!("{patience:.1?}");
        // Such as a login that one of the brokers refuses.
        let cause = self.producer.last_error(patience);
        let cause =
            cause.map(|error| format!(". Last error of the Kafka client: {error}")).unwrap_or_default();
        for destination in silent {
            self.hold_silent(destination, patience, &cause);
        }
        let error = format!(
            "no records in some partitions were acknowledged for {waited}, although other partitions acknowledged \
             records{cause}"
        );
        self.close(STUCK.failure(error));
        true
    }

    /// Holds the topic of a partition that was silent for so long, although the cluster answers and other partitions work.
    pub(crate) fn hold_silent(&mut self, silent: Destination, waited: Duration, cause: &str) {
        let error = format!(
            "no record in partition {} was acknowledged for {waited:.1?}, although other partitions acknowledged records{cause}",
            silent.partition
        );
        self.hold(silent, STUCK.rejection(error));
    }

    /// Closes the session if every row in flight is in a topic that is held meanwhile. Its claim holds these topics too.
    pub(crate) fn close_if_held<E: Event>(
        &mut self,
        batch: &Batch<E>,
        is_held: impl Fn(&str) -> bool,
    ) -> bool {
        let silent = self.with(Fate::InFlight, batch, batch.len());
        let closes = !silent.is_empty() && silent.iter().all(|place| is_held(self.topic(*place)));
        if closes {
            const ERROR: &str = "another worker of this relay has held the topics of all records that were not acknowledged yet";
            silent.into_iter().for_each(|place| self.hold(place, STUCK.rejection(ERROR)));
            self.close(STUCK.failure(ERROR));
        }
        closes
    }

    /// Whether some row of the batch is known to stay unsent. A flow must then end, because a later row of its key could
    /// overtake it.
    pub(crate) fn leaves_rows<E: Event>(&self, batch: &Batch<E>) -> bool {
        self.failure.is_some()
            || self.sends_until.get().is_none()
            || self.topics.iter().any(|topic| matches!(topic.state, TopicState::Held(_)))
            || batch.has_refused()
    }

    /// The topics with acknowledged rows, the number of these rows, and their bytes.
    pub(crate) fn tally<E: Event>(&self, batch: &Batch<E>) -> impl Iterator<Item = (&str, u64, u64)> {
        let mut tallies = vec![(0_u64, 0_u64); self.topics.len()];
        for (index, destination) in self.destinations.iter().enumerate() {
            if let (Some(destination), Fate::Acknowledged) = (destination, batch.fate(index)) {
                let (rows, bytes) = &mut tallies[destination.topic as usize];
                *rows += 1;
                *bytes += batch.rows()[index].size() as u64;
            }
        }
        let topics = self.topics.iter().zip(tallies);
        topics
            .map(|(topic, (rows, bytes))| (topic.name.as_str(), rows, bytes))
            .filter(|(_, rows, _)| *rows > 0)
    }
}

/// Whether the session closes because the lookup of a topic in this state failed.
fn closes(failure: &KafkaFailure, state: &TopicState) -> bool {
    match failure.kind {
        FailureKind::Topic | FailureKind::Row => false,
        FailureKind::Unknown => !matches!(state, TopicState::Due(_)),
        FailureKind::Session | FailureKind::Cluster => true,
    }
}

#[cfg(test)]
mod tests;
