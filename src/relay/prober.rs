//! The prober: finds out when Kafka, or a held topic, works again.

use super::Relay;
use super::backoff::Backoff;
use super::cycle::alive;
use super::event::Event;
use super::failure::{Failure, FailureKind, Fault};
use super::judge::REJECTS_EVERYTHING;
use super::lane::Lane;
use super::marks::LOWEST;
use super::outage::Outage;
use super::outbox::{Claim, Outbox, Read, Settled, Settlement};
use super::partition;
use super::publisher::{Judged, Publisher};
use super::worker::POSTGRES_ADVICE;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const CLUSTER_FIRST: Duration = Duration::from_millis(200);
const CLUSTER_MOST: Duration = Duration::from_secs(2);
const HOLDS_EVERY: Duration = Duration::from_millis(500);
/// How long the lane of a probe's row is tried for, which another relay may have in hand.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);
const CLAIM_EVERY: Duration = Duration::from_millis(20);

/// The holds, which are rows in the database: all relays agree on them.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Holds {
    /// How many topics are held, and how many keys blocked.
    async fn count(&mut self) -> Result<Waiting, Fault>;
    /// A topic whose time for a probe has come, if there is one. No other relay gets it meanwhile.
    async fn due(&mut self) -> Result<Option<Due>, Fault>;
    /// A row to probe it with; `None` if no row waits for it.
    async fn witness(&mut self, due: &Due) -> Result<Option<Witness>, Fault>;
    /// The topic works: its rows flow again.
    async fn lift(&mut self, topic: &str) -> Result<(), Fault>;
    /// It does not: probed again later. A `reason` takes the place of the one that it was held for.
    async fn postpone(&mut self, topic: &str, reason: Option<&str>, error: &str) -> Result<(), Fault>;
    /// Nothing was found out: probed again soon.
    async fn again(&mut self, topic: &str) -> Result<(), Fault>;
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Held topics.
    pub topics: i64,
    /// Blocked keys.
    pub keys: i64,
}

/// A held topic that is to be probed.
#[derive(Clone, Debug)]
pub struct Due {
    /// The topic.
    pub topic: String,
    /// Why it was held.
    pub reason: String,
}

/// A row of a held topic.
#[derive(Clone, Copy, Debug)]
pub struct Witness {
    /// The lane of its key.
    pub lane: Lane,
    /// The row; the probe takes the first unsent one of its key.
    pub id: i64,
}

/// Opens the gate whenever Kafka answers.
pub async fn keep_gate<P: Publisher>(relay: Rc<Relay<P>>, random: fastrand::Rng) {
    let mut backoff = Backoff::new(CLUSTER_FIRST, CLUSTER_MOST, random);
    loop {
        relay.gate.closed().await;
        if let Some(reason) = relay.gate.reason() {
            relay.stats.kafka.fails(&reason);
            relay.kafka.failed(0, &reason, KAFKA_ADVICE);
        }
        match relay.publisher.probe().await {
            Ok(()) => {
                relay.stats.kafka.answers();
                relay.kafka.worked(0);
                relay.gate.open();
                backoff.reset();
            }
            Err(failure) => {
                relay.stats.kafka.fails(&failure);
                relay.kafka.failed(0, &failure, KAFKA_ADVICE);
                sleep(backoff.next_wait()).await;
            }
        }
    }
}

const KAFKA_ADVICE: &str = "Nothing is claimed meanwhile, and the relay goes on by itself as soon as it works; look at [kafka] bootstrap_servers and the brokers";

/// Probes held topics when their time has come.
pub async fn keep_holds<P: Publisher, H: Holds, O: Outbox>(relay: Rc<Relay<P>>, mut holds: H, mut outbox: O) {
    let outage = Outage::new("probing held topics");
    loop {
        relay.gate.opened().await;
        match probe_due(&relay, &mut holds, &mut outbox).await {
            Ok(_) => outage.worked(0),
            Err(fault) => outage.failed(0, &fault, POSTGRES_ADVICE),
        }
        sleep(HOLDS_EVERY).await;
    }
}

/// Probes every held topic whose time has come, once. Returns how many were lifted.
pub async fn probe_due<P: Publisher, H: Holds, O: Outbox>(
    relay: &Relay<P>,
    holds: &mut H,
    outbox: &mut O,
) -> Result<usize, Fault> {
    let mut lifted = 0;
    let waiting = holds.count().await?;
    relay.stats.held_topics.set(waiting.topics);
    relay.stats.blocked_keys.set(waiting.keys);
    if waiting.topics == 0 {
        return Ok(0);
    }
    while let Some(due) = holds.due().await? {
        match probe(relay, holds, outbox, &due).await? {
            Probe::Works => {
                holds.lift(&due.topic).await?;
                lifted += 1;
                tracing::info!(topic = due.topic, "the topic works again, its events flow");
            }
            Probe::Fails(failure) => {
                let reason = (failure.kind == FailureKind::Topic).then_some(failure.reason);
                holds.postpone(&due.topic, reason, &failure.error).await?;
            }
            Probe::Unknown => holds.again(&due.topic).await?,
        }
    }
    Ok(lifted)
}

/// What a probe says.
enum Probe {
    Works,
    Fails(Failure),
    /// Somebody else has the row.
    Unknown,
}

/// Publishes one row of the topic alone, as a batch of its own: under the lock of its lane, and settled if Kafka
/// acknowledges it.
async fn probe<P: Publisher, H: Holds, O: Outbox>(
    relay: &Relay<P>,
    holds: &mut H,
    outbox: &mut O,
    due: &Due,
) -> Result<Probe, Fault> {
    let partitions = match relay.publisher.probe_topic(&due.topic).await {
        Ok(partitions) => partitions,
        Err(failure) => return Ok(Probe::Fails(failure)),
    };
    let Some(witness) = holds.witness(due).await? else { return Ok(Probe::Works) };
    if timeout(relay.limits.publish_timeout, relay.board.reserve(witness.lane)).await.is_err() {
        relay.board.give_up(witness.lane);
        return Ok(Probe::Unknown);
    }
    let probed = publish_first(relay, outbox, due, witness, partitions).await;
    relay.board.give_up(witness.lane);
    probed
}

async fn publish_first<P: Publisher, O: Outbox>(
    relay: &Relay<P>,
    outbox: &mut O,
    due: &Due,
    witness: Witness,
    partitions: u32,
) -> Result<Probe, Fault> {
    let begun = Instant::now();
    let mut claim = loop {
        let claim = outbox.claim(&[witness.lane]).await?;
        if !claim.lanes().is_empty() {
            break claim;
        }
        claim.release().await?;
        if begun.elapsed() > CLAIM_PATIENCE {
            return Ok(Probe::Unknown);
        }
        sleep(CLAIM_EVERY).await;
    };
    // Without marks: it begins at the smallest id, and raises none.
    let read = Read { lows: vec![LOWEST], hold_version: -1, rows_max: 1, first_of_key_of: Some(witness.id) };
    claim.read(&read).await?;
    let mut rows = Vec::new();
    claim.next_slice(1, usize::MAX, &mut rows).await?;
    let Some(row) = rows.first() else {
        claim.release().await?;
        return Ok(Probe::Unknown);
    };
    if relay.acknowledged.borrow().contains(row) {
        settle(relay, claim, row).await?;
        return Ok(Probe::Unknown); // That was before.
    }
    let partition = partition::of(row.key(), partitions);
    let alone = [row];
    let judging = timeout(relay.limits.publish_timeout, relay.publisher.judge(&due.topic, partition, &alone));
    let (judged, kept) = alive(relay, &mut claim, judging).await;
    let failure = match judged {
        Ok(Judged { failure: None, .. }) => None,
        Ok(Judged { failure: Some(failure), .. }) => Some(failure),
        Err(_) => Some(Failure::unknown("no answer to a single event")),
    };
    match failure {
        None => {
            if let Err(fault) = kept {
                relay.acknowledged.borrow_mut().keep(std::iter::once(row));
                return Err(fault);
            }
            settle(relay, claim, row).await?;
            relay.refusals.accepted(&due.topic, row.size());
            Ok(Probe::Works)
        }
        Some(failure) => {
            kept?;
            claim.release().await?;
            // A topic that answers to a single row works; whether that row is guilty is found out in its turn.
            let answers = failure.kind == FailureKind::Row && due.reason != REJECTS_EVERYTHING;
            Ok(if answers { Probe::Works } else { Probe::Fails(failure) })
        }
    }
}

/// Settles the row that Kafka has acknowledged.
async fn settle<C: Claim, P>(relay: &Relay<P>, claim: C, row: &C::Event) -> Result<(), Fault> {
    let settlement = Settlement {
        sent: vec![row],
        rejected: Vec::new(),
        blocked: Vec::new(),
        held: Vec::new(),
        skip_locked: true,
    };
    let settled = claim.settle(&settlement).await;
    if !matches!(settled, Ok(Settled { all: true })) {
        relay.acknowledged.borrow_mut().keep(std::iter::once(row));
    }
    if settled.is_ok() {
        relay.stats.published.inc();
    }
    settled.map(|_| ())
}
