//! Rows that probe held topics, with their producer. Before any lane is locked, and without a write, the prober checks whether the
//! topics exist and their leaders answer. Rows are sent and settled under the locks of their lanes.

use crate::health::availability::PROBER;
use crate::holds::{Due, ExampleRow};
use crate::lanes::marks::{Excepted, LOWEST};
use crate::memory::{Memory, UNKNOWN_HOLDS};
use crate::outbox::{RowSelection, Wanted};
use crate::reason::{LEADER_MOVING, REJECTS_EVERYTHING, STUCK};
use crate::{
    Board, Claim, DeliveryReport, Epoch, Event, FailureKind, KafkaFailure, LANES, Lane, NotSent, Outbox,
    PostgresFault, Producer, ReadEnd, ReadRequest, Relay, Settled, Settlement, partition, topic,
};
use futures_util::stream::{FuturesUnordered, StreamExt, iter};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long lanes stay locked while waiting for Kafka. Healthy brokers answer within a few milliseconds.
pub(super) const LOCKED_FOR: Duration = Duration::from_millis(250);
/// How long the prober leaves a lane alone after no report arrived within [`LOCKED_FOR`]. It therefore takes at most a
/// twentieth of a lane's time, even if many topics of the lane are stuck.
const LANE_RESTS: Duration = Duration::from_secs(5);

/// Rows on one producer, at most one per partition.
pub(crate) struct Flight<P, E> {
    pub(super) producer: P,
    /// When the last report arrived, or the last row was sent.
    pub(super) silent_since: Instant,
    sent: u32,
    probes: Vec<Probe<E>>,
    /// Rows whose settlement failed or left them out.
    pub(super) unsettled: Vec<Unsettled<E>>,
}

/// A row that Kafka has acknowledged and PostgreSQL has not recorded as sent.
pub(crate) struct Unsettled<E> {
    pub(super) topic: String,
    pub(super) row: E,
    /// Its acknowledgement shows that the topic works now.
    pub(super) proves: bool,
}

/// A row whose outcome was not handled yet.
struct Probe<E> {
    index: u32,
    due: Due,
    row: E,
    outcome: Option<Result<(), KafkaFailure>>,
}

impl<P: Producer, E: Event> Flight<P, E> {
    pub(crate) fn new(producer: P) -> Flight<P, E> {
        let silent_since = Instant::now();
        Flight { producer, silent_since, sent: 0, probes: Vec::new(), unsettled: Vec::new() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.probes.is_empty()
    }

    pub(crate) fn topics(&self) -> impl Iterator<Item = &str> {
        self.probes.iter().map(|probe| probe.due.topic.as_str())
    }

    /// Stops waiting. Rows in flight may still be stored.
    pub(crate) fn abandon(&self, memory: &Memory) {
        self.probes.iter().for_each(|probe| memory.end_probing(&probe.row));
    }

    /// Locks the lanes of these candidates as they become free, sends a row of each, and settles those that are acknowledged
    /// within [`LOCKED_FOR`].
    pub(crate) async fn publish<Q, O: Outbox<Event = E>>(
        &mut self,
        relay: &Relay<Q>,
        outbox: &mut O,
        mut waiting: Vec<Candidate>,
        found: &mut ProbeResults,
        lane_rests: &mut [Option<Instant>; LANES],
    ) -> Result<(), PostgresFault> {
        let lanes = waiting.iter().map(|candidate| candidate.example.lane);
        let mut turns = Turns::new(&relay.lanes.board, lanes, LANES_WITHIN);
        while let Some(free) = turns.next().await {
            let claim = outbox.claim(&free, None).await?;
            let owned = claim.lanes().to_vec();
            if owned.is_empty() {
                claim.release().await?;
                sleep(TRY_EVERY).await;
                continue;
            }
            let is_ours = |candidate: &mut Candidate| owned.contains(&candidate.example.lane);
            let ours = waiting.extract_if(.., is_ours).collect();
            let done = self.publish_locked(relay, claim, ours, found, lane_rests).await;
            turns.done(&owned);
            done?;
        }
        Ok(())
    }

    async fn publish_locked<Q, C: Claim<Event = E>>(
        &mut self,
        relay: &Relay<Q>,
        mut claim: C,
        candidates: Vec<Candidate>,
        found: &mut ProbeResults,
        lane_rests: &mut [Option<Instant>; LANES],
    ) -> Result<(), PostgresFault> {
        let examples = candidates.iter().map(|candidate| (candidate.example.lane, candidate.example.id));
        let begun = Instant::now();
        let (rows, _) = read(relay, &mut claim, RowSelection::FirstOfKeys, examples).await?;
        if begun.elapsed() >= relay.settings.limits().takeover_timeout {
            claim.keep_alive().await?; // a relay that was frozen may have lost it
        }
        let of_topic = |row| (topic::name(&relay.kafka.topics, &row), row);
        let mut rows: HashMap<String, E> = rows.into_iter().map(of_topic).collect();
        let (first, mut recovered) = (self.sent, Vec::new());
        for Candidate { due, partitions, .. } in candidates {
            let Some(row) = rows.remove(&due.topic) else { continue };
            if let Err(rejection) = topic::check(&relay.kafka.topics, &row, &due.topic) {
                classify(due, rejection.into(), found);
            } else if relay.memory.acknowledged.borrow().contains(&row) {
                // An earlier probe sent it, which does not show whether the topic works now.
                recovered.push(Unsettled { topic: due.topic, row, proves: false });
            } else {
                self.send(due, row, partitions, found);
            }
        }
        self.wait_for_reports(first).await;
        // Before the lanes are free, so that claims that read these rows wait for their acks.
        for probe in self.probes.iter().filter(|probe| probe.index >= first && probe.outcome.is_none()) {
            relay.memory.begin_probing(&probe.row);
            lane_rests[probe.row.lane().index()] = Some(Instant::now() + LANE_RESTS);
        }
        let is_ours = |probe: &mut Probe<E>| probe.index >= first && matches!(probe.outcome, Some(Ok(())));
        let mut acknowledged = Vec::new();
        for Probe { due: Due { topic, .. }, row, .. } in self.probes.extract_if(.., is_ours) {
            // The row of a probe was sent after every row that was refused unsent.
            relay.memory.streaks.sent(&topic);
            relay.memory.streaks.accepted(&topic, row.size());
            acknowledged.push(Unsettled { topic, row, proves: true });
        }
        acknowledged.append(&mut recovered);
        let sent: Vec<&E> = acknowledged.iter().map(|late| &late.row).collect();
        let settled = settle(relay, claim, &sent).await;
        for late in acknowledged {
            if !settled.as_ref().is_ok_and(|settled| settled.has_recorded(&late.row)) {
                self.unsettled.push(late);
            } else if late.proves {
                found.works.push(late.topic);
            }
        }
        settled.map(drop)
    }

    fn send(&mut self, due: Due, row: E, partitions: u32, found: &mut ProbeResults) {
        let partition = partition::of(row.key(), partitions);
        let index = self.sent;
        match self.producer.send(index, &due.topic, partition, &row) {
            Ok(()) => {
                self.silent_since = Instant::now();
                self.sent += 1;
                self.probes.push(Probe { index, due, row, outcome: None });
            }
            Err(NotSent::Session(failure)) => found.fails.push((due.topic, failure)),
            Err(NotSent::Row(rejection)) => classify(due, rejection.into(), found),
        }
    }

    /// Waits up to [`LOCKED_FOR`] for the outcomes of the rows from this one on.
    async fn wait_for_reports(&mut self, first: u32) {
        let until = Instant::now() + LOCKED_FOR;
        loop {
            self.absorb();
            if self.probes.iter().all(|probe| probe.index < first || probe.outcome.is_some()) {
                return;
            }
            let reported = async {
                if self.producer.has_failed() {
                    // `wait_until_quiet` returns at once after a failure.
                    self.producer.all_reported().await;
                } else {
                    self.producer.wait_until_quiet(true).await;
                }
            };
            if timeout_at(until, reported).await.is_err() {
                return self.absorb();
            }
        }
    }

    fn absorb(&mut self) {
        let mut reports = Vec::new();
        self.producer.take_reports(&mut reports);
        if !reports.is_empty() {
            self.silent_since = Instant::now();
        }
        for DeliveryReport { index, outcome } in reports {
            if let Some(probe) = self.probes.iter_mut().find(|probe| probe.index == index) {
                probe.outcome = Some(outcome);
            }
        }
    }

    pub(crate) fn take_failed(&mut self, memory: &Memory, found: &mut ProbeResults) {
        self.absorb();
        for probe in self.probes.extract_if(.., |probe| matches!(probe.outcome, Some(Err(_)))) {
            memory.end_probing(&probe.row);
            if let Some(Err(failure)) = probe.outcome {
                classify(probe.due, failure, found);
            }
        }
    }

    /// Removes the rows whose acks arrived late and adds them to the acknowledged set.
    pub(crate) fn take_acknowledged(&mut self, memory: &Memory) -> Vec<Unsettled<E>> {
        self.absorb();
        let acknowledged = self.probes.extract_if(.., |probe| matches!(probe.outcome, Some(Ok(()))));
        let keep = |probe: Probe<E>| {
            memory.acknowledged.borrow_mut().keep(std::iter::once(&probe.row), UNKNOWN_HOLDS);
            memory.end_probing(&probe.row);
            Unsettled { topic: probe.due.topic, row: probe.row, proves: true }
        };
        acknowledged.map(keep).collect()
    }
}

/// A topic that refuses a single row answers, so it works. A later claim judges that row.
fn classify(due: Due, failure: KafkaFailure, found: &mut ProbeResults) {
    if failure.kind == FailureKind::Row && due.reason != REJECTS_EVERYTHING.word {
        found.works.push(due.topic);
    } else {
        found.fails.push((due.topic, after_metadata(failure)));
    }
}

/// The metadata has shown that the topic exists. If nothing else is known, it is stuck, whatever it was held for before.
fn after_metadata(failure: KafkaFailure) -> KafkaFailure {
    if failure.kind == FailureKind::Unknown { STUCK.failure(failure.error) } else { failure }
}

/// Settles rows that were acknowledged after their lanes were released, or that could not be settled then. Rows that were paused
/// meanwhile are settled too: they are in Kafka, and another relay would publish them again after `resume`. Those that stay in
/// `unsettled` are not settled yet.
pub(crate) async fn settle_late<Q, O: Outbox>(
    relay: &Relay<Q>,
    outbox: &mut O,
    unsettled: &mut Vec<Unsettled<O::Event>>,
    patience: Duration,
    found: &mut ProbeResults,
) -> Result<(), PostgresFault> {
    let lanes = unsettled.iter().map(|late| late.row.lane());
    let mut turns = Turns::new(&relay.lanes.board, lanes, patience);
    while let Some(free) = turns.next().await {
        let mut claim = outbox.claim(&free, None).await?;
        let owned = claim.lanes().to_vec();
        if owned.is_empty() {
            claim.release().await?;
            sleep(TRY_EVERY).await;
            continue;
        }
        let is_ours = |row: &O::Event| owned.contains(&row.lane());
        let ours = unsettled.iter().map(|late| &late.row).filter(|row| is_ours(row));
        let ours = ours.map(|row| (row.lane(), row.id()));
        let (rows, end) = read(relay, &mut claim, RowSelection::Named, ours).await?;
        let is_known = |row: &&O::Event| relay.memory.acknowledged.borrow().contains(*row);
        let known: Vec<&O::Event> = rows.iter().filter(is_known).collect();
        let settled = settle(relay, claim, &known).await?;
        turns.done(&owned);
        unsettled.retain(|Unsettled { topic, row, proves }| {
            if !is_ours(row) {
                return true;
            }
            let is_row = |read: &O::Event| read.id() == row.id();
            if known.iter().any(|read| is_row(read)) {
                let is_recorded = settled.has_recorded(row);
                found.works.extend((is_recorded && *proves).then(|| topic.clone()));
                return !is_recorded;
            }
            // Another relay has settled it, or its id belongs to another row.
            let is_gone = end == ReadEnd::Complete || rows.iter().any(is_row);
            if is_gone {
                // Otherwise an operator's `sent_at = NULL` would be ignored.
                relay.memory.acknowledged.borrow_mut().settled(std::iter::once(row));
            }
            !is_gone
        });
    }
    Ok(())
}

/// At most one row for each named one, and whether these are all.
async fn read<Q, C: Claim>(
    relay: &Relay<Q>,
    claim: &mut C,
    rows: RowSelection,
    named: impl Iterator<Item = (Lane, i64)>,
) -> Result<(Vec<C::Event>, ReadEnd), PostgresFault> {
    // Without marks: it begins at the smallest id, and raises none.
    let wanted: Vec<Wanted> =
        named.map(|(lane, id)| Wanted { lane, low: LOWEST, share: 1, row: Some(id) }).collect();
    let count = wanted.len();
    let read = ReadRequest { rows, wanted, epoch: Epoch::NONE, excepted: Excepted::none(), rows_max: count };
    claim.read(&read).await?;
    let mut rows = Vec::new();
    // Rows beyond the byte limit are probed later.
    let slice = claim.next_slice(count, relay.settings.limits().batch_bytes, &mut rows).await?;
    Ok((rows, slice.end))
}

/// Settles rows that Kafka has acknowledged, or ends the claim if there are none.
async fn settle<Q, C: Claim>(
    relay: &Relay<Q>,
    claim: C,
    sent: &[&C::Event],
) -> Result<Settled, PostgresFault> {
    if sent.is_empty() {
        return claim.release().await.map(|()| Settled::All);
    }
    let settlement = Settlement {
        sent: sent.to_vec(),
        rejected: Vec::new(),
        blocked: Vec::new(),
        held: Vec::new(),
        around_locks: true,
    };
    let settled = claim.settle(&settlement).await;
    let mut acknowledged = relay.memory.acknowledged.borrow_mut();
    let (recorded, others): (Vec<&C::Event>, Vec<&C::Event>) =
        sent.iter().partition(|row| settled.as_ref().is_ok_and(|settled| settled.has_recorded(**row)));
    let count = recorded.len();
    acknowledged.settled(recorded.into_iter());
    acknowledged.keep(others.into_iter(), UNKNOWN_HOLDS);
    drop(acknowledged);
    if settled.is_ok() {
        relay.stats.published.inc_by(count as u64);
        relay.note_marked(PROBER, count == sent.len());
    }
    settled
}

/// The topics with a result.
#[derive(Default)]
pub(crate) struct ProbeResults {
    /// Their holds end. Kafka has acknowledged a row, and it is recorded as sent: otherwise another relay would publish it again once
    /// its hold ends. Or no row waits, its row cannot be read, or Kafka refused only that row.
    pub(crate) works: Vec<String>,
    pub(crate) fails: Vec<(String, KafkaFailure)>,
}

/// The maximum number of concurrent requests to the brokers; each has a thread.
const REQUESTS_MAX: usize = 16;

pub(crate) struct Candidate {
    pub(crate) due: Due,
    pub(crate) example: ExampleRow,
    pub(crate) partitions: u32,
    partition: u32,
    leader: Option<i32>,
}

impl Candidate {
    pub(crate) fn new(due: Due, example: ExampleRow, leaders: &[Option<i32>]) -> Candidate {
        let partitions = leaders.len() as u32;
        let partition = example.key.as_deref().map_or(0, |key| partition::of(key, partitions));
        let leader = leaders.get(partition as usize).copied().flatten();
        Candidate { due, example, partitions, partition, leader }
    }
}

/// Fetches the leaders of these topics. Topics that are missing or without an answer fail.
pub(crate) async fn leaders<P: Producer>(
    producer: &P,
    due: Vec<Due>,
    found: &mut ProbeResults,
) -> Vec<(Due, Vec<Option<i32>>)> {
    let mut known = Vec::with_capacity(due.len());
    let ask = |due: Due| async move {
        let leaders = producer.leaders(&due.topic).await;
        (due, leaders)
    };
    let mut due = due.into_iter();
    // Ask for the first topic alone: if no broker answers, the other requests are not needed.
    if let Some(first) = due.next() {
        match ask(first).await {
            (first, Ok(leaders)) => known.push((first, leaders)),
            (first, Err(failure)) => {
                let silent = failure.kind != FailureKind::Topic;
                found.fails.push((first.topic, failure));
                if silent {
                    return known;
                }
            }
        }
    }
    let mut answers = iter(due.map(ask)).buffer_unordered(REQUESTS_MAX);
    while let Some((due, answer)) = answers.next().await {
        match answer {
            Ok(leaders) => known.push((due, leaders)),
            Err(failure) => found.fails.push((due.topic, failure)),
        }
    }
    known
}

/// The candidates whose leader answers this relay. Sends one request to each broker, concurrently.
pub(crate) async fn reachable<P: Producer>(
    producer: &P,
    candidates: Vec<Candidate>,
    found: &mut ProbeResults,
) -> Vec<Candidate> {
    let mut of_broker: BTreeMap<i32, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        match candidate.leader {
            Some(broker) => of_broker.entry(broker).or_default().push(candidate),
            None => {
                let error = format!("partition {} has no leader", candidate.partition);
                found.fails.push((candidate.due.topic, STUCK.failure(error)));
            }
        }
    }
    let mut requests: FuturesUnordered<_> =
        of_broker.into_values().map(|candidates| reachable_through(producer, candidates)).collect();
    let mut reached = Vec::new();
    while let Some((answer, fails)) = requests.next().await {
        reached.extend(answer);
        found.fails.extend(fails.into_iter().map(|(topic, failure)| (topic, after_metadata(failure))));
    }
    reached
}

/// Like [`reachable`], for partitions with the same leader.
async fn reachable_through<P: Producer>(
    producer: &P,
    mut candidates: Vec<Candidate>,
) -> (Vec<Candidate>, Vec<(String, KafkaFailure)>) {
    let mut fails = Vec::new();
    while let Some(candidate) = candidates.first() {
        let Err(failure) = producer.reach_leader(&candidate.due.topic, candidate.partition).await else {
            break;
        };
        if failure.kind == FailureKind::Topic || failure.reason == LEADER_MOVING.word {
            // Only this topic is affected. A newly elected leader may not know yet that it is the leader.
            fails.push((candidates.swap_remove(0).due.topic, failure));
            continue;
        }
        fails.extend(candidates.drain(..).map(|candidate| (candidate.due.topic, failure.clone())));
    }
    (candidates, fails)
}

/// How long to wait for lanes that a worker or another relay has.
pub(super) const LANES_WITHIN: Duration = Duration::from_secs(3);
/// How often to retry lanes that other relays have locked.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Lanes that the prober needs. Dropping it returns them to the workers.
struct Turns<'a> {
    board: &'a Board,
    /// Lanes that a worker still has.
    waiting: Vec<Lane>,
    reserved: Vec<Lane>,
    deadline: Instant,
}

impl<'a> Turns<'a> {
    fn new(board: &'a Board, lanes: impl Iterator<Item = Lane>, patience: Duration) -> Turns<'a> {
        let waiting = lanes.collect::<BTreeSet<_>>().into_iter().collect();
        Turns { board, waiting, reserved: Vec::new(), deadline: Instant::now() + patience }
    }

    /// Waits for lanes that no worker of this relay has. `None` if no lanes are left or it takes too long.
    async fn next(&mut self) -> Option<Vec<Lane>> {
        loop {
            let returned = self.board.returned.notified();
            let free = self.board.reserve(&self.waiting);
            self.waiting.retain(|lane| !free.contains(lane));
            self.reserved.extend(free);
            if !self.reserved.is_empty() {
                return (Instant::now() < self.deadline).then(|| self.reserved.clone());
            }
            if self.waiting.is_empty() {
                return None;
            }
            timeout_at(self.deadline, returned).await.ok()?;
        }
    }

    fn done(&mut self, lanes: &[Lane]) {
        self.reserved.retain(|lane| !lanes.contains(lane));
        lanes.iter().for_each(|lane| self.board.end_reservation(*lane));
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.waiting.iter().for_each(|lane| self.board.cancel_reservation(*lane));
        self.reserved.iter().for_each(|lane| self.board.end_reservation(*lane));
    }
}

#[cfg(test)]
pub(super) mod tests;
