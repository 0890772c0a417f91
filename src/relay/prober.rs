//! The prober: finds out when Kafka, or a held topic, works again.

use super::Relay;
use super::backoff::Backoff;
use super::failure::{Failure, FailureKind, Fault, FaultKind};
use super::lane::Lane;
use super::outage::Outage;
use super::outbox::Outbox;
use super::pauses::{Counts, Pause, Told};
use super::probe::{Probe, probe};
use super::publisher::Publisher;
use super::reason::remedy;
use super::worker::POSTGRES_ADVICE;
use crate::fail_point;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const CLUSTER_FIRST: Duration = Duration::from_millis(200);
const CLUSTER_MOST: Duration = Duration::from_secs(2);
const CLUSTER_PROBES_MOST: usize = 6;
/// An outage that no probe sees is over after this time without another failure, if no row waits to prove it.
const QUIET: Duration = Duration::from_secs(15);
const QUIET_LOOK_EVERY: Duration = Duration::from_secs(1);
const HOLDS_EVERY: Duration = Duration::from_millis(500);

/// The holds, which are rows in the database: all relays agree on them.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Holds {
    /// How many topics are held, how many keys blocked, and how much is paused.
    async fn count(&mut self) -> Result<Waiting, Fault>;
    /// Some of the pauses, for people.
    async fn pauses(&mut self) -> Result<Vec<Pause>, Fault>;
    /// Some of the held topics, with the reasons, for people.
    async fn held(&mut self) -> Result<Vec<(String, String)>, Fault>;
    /// A topic whose time for a probe has come, and that is not paused, if there is one. No other relay gets it meanwhile.
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
    /// What operators have paused.
    pub paused: Counts,
    /// The version of this set.
    pub hold_version: i64,
}

impl Waiting {
    /// No row has to wait.
    pub fn is_empty(&self) -> bool {
        self.topics + self.keys + self.paused.total() == 0
    }
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

/// Opens the gate whenever Kafka answers. If a session's failure has closed it, the outage lasts until a row is
/// acknowledged, since a probe may not see the cause.
pub async fn keep_gate<P: Publisher>(relay: Rc<Relay<P>>, random: fastrand::Rng) {
    let mut backoff = Backoff::new(CLUSTER_FIRST, CLUSTER_MOST, random);
    loop {
        tokio::select! {
            biased;
            () = relay.gate.closed() => {}
            () = quiet(&relay) => {
                relay.gate.trust();
                relay.kafka_works();
                continue;
            }
        }
        if let Some(reason) = relay.gate.reason() {
            relay.stats.kafka.fails(&reason);
            relay.kafka.failed(0, &reason, &advice(&reason));
        }
        if relay.gate.opened_in_vain() {
            sleep(backoff.next_wait()).await;
        } else {
            backoff.reset();
        }
        probe_until_answered(&relay, &mut backoff).await;
        if relay.gate.doubted_for().is_none() {
            relay.kafka_works();
        }
        relay.gate.open();
    }
}

/// Waits until a failure is so long ago, while nothing was in hand, that there is nothing to prove it with.
async fn quiet<P>(relay: &Relay<P>) {
    while relay.gate.doubted_for().is_none_or(|time| time < QUIET) || relay.stats.workers_busy.get() > 0 {
        sleep(QUIET_LOOK_EVERY).await;
    }
}

/// A connection that swallows what is sent keeps its probe waiting, even after Kafka is back: so the next probe does
/// not wait for it.
async fn probe_until_answered<P: Publisher>(relay: &Relay<P>, backoff: &mut Backoff) {
    let mut probes = FuturesUnordered::new();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(answer) = probes.next() => match answer {
                Ok(()) => return,
                Err(failure) => {
                    relay.stats.kafka.fails(&failure);
                    relay.kafka.failed(0, &failure, &advice(&failure));
                }
            },
            () = sleep_until(next), if probes.len() < CLUSTER_PROBES_MOST => {
                probes.push(relay.publisher.probe());
                // A probe takes some round trips: the next one gives it time.
                next = Instant::now() + CLUSTER_FIRST + backoff.next_wait();
            }
        }
    }
}

fn advice(failure: &Failure) -> String {
    let remedy = remedy(failure.reason);
    format!(
        "Nothing is claimed meanwhile, and the relay goes on by itself as soon as it works. What to do: {remedy}"
    )
}

/// Looks what waits, for metrics and the log: while Kafka is away, or a probe takes long, too.
pub async fn watch_holds<P, H: Holds>(relay: Rc<Relay<P>>, mut holds: H) {
    let outage = Outage::new("looking for what waits");
    let mut told = Told::default();
    loop {
        note(&outage, look(&relay, &mut holds, &mut told).await);
        sleep(HOLDS_EVERY).await;
    }
}

async fn look<P, H: Holds>(relay: &Relay<P>, holds: &mut H, told: &mut Told) -> Result<(), Fault> {
    let asked = Instant::now();
    let waiting = holds.count().await?;
    relay.stats.held_topics.set(waiting.topics);
    relay.stats.blocked_keys.set(waiting.keys);
    relay.stats.count_pauses(waiting.paused);
    relay.nothing_held_at.set(waiting.is_empty().then_some(waiting.hold_version));
    let held = if waiting.topics == 0 { Vec::new() } else { holds.held().await? };
    relay.stats.name_held(&held);
    if held.len() as i64 == waiting.topics {
        for (topic, lasted) in relay.holding.left(asked, &held) {
            say_lifted(&topic, Some(lasted));
        }
    }
    if told.is_older_than(waiting.hold_version) {
        let pauses = if waiting.paused.total() == 0 { Vec::new() } else { holds.pauses().await? };
        told.tell(waiting.hold_version, pauses);
    }
    Ok(())
}

fn note(outage: &Outage, done: Result<(), Fault>) {
    match done {
        Ok(()) => outage.worked(0),
        // The scout meets that too, and says it.
        Err(fault) if fault.kind == FaultKind::Unavailable => tracing::debug!("{fault}"),
        Err(fault) => outage.failed(0, &fault, POSTGRES_ADVICE),
    }
}

/// Probes held topics when their time has come. [`watch_holds`] says whether there are any.
pub async fn keep_holds<P: Publisher, H: Holds, O: Outbox>(relay: Rc<Relay<P>>, mut holds: H, mut outbox: O) {
    let outage = Outage::new("probing held topics");
    loop {
        relay.gate.opened().await;
        fail_point::reach("probing-holds").await;
        if relay.stats.held_topics.get() > 0 {
            note(&outage, probe_due(&relay, &mut holds, &mut outbox).await);
        }
        sleep(HOLDS_EVERY).await;
    }
}

/// Probes every held topic whose time has come, once.
async fn probe_due<P: Publisher, H: Holds, O: Outbox>(
    relay: &Relay<P>,
    holds: &mut H,
    outbox: &mut O,
) -> Result<(), Fault> {
    while let Some(due) = holds.due().await? {
        match probe(relay, holds, outbox, &due).await? {
            Probe::Works => {
                holds.lift(&due.topic).await?;
                say_lifted(&due.topic, relay.holding.ends(&due.topic));
            }
            Probe::Fails(failure) => {
                let reason = (failure.kind == FailureKind::Topic).then_some(failure.reason);
                holds.postpone(&due.topic, reason, &failure.error).await?;
            }
            Probe::Unknown => holds.again(&due.topic).await?,
        }
    }
    Ok(())
}

fn say_lifted(topic: &str, lasted: Option<Duration>) {
    let seconds = lasted.map(|lasted| lasted.as_secs_f64());
    tracing::info!(topic, seconds, "the topic works again, its events flow: {topic}");
}
