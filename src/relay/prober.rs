//! The prober: finds out when Kafka, or a held topic, works again.

use super::Relay;
use super::backoff::Backoff;
use super::failure::{FailureKind, Fault};
use super::lane::Lane;
use super::outage::Outage;
use super::outbox::Outbox;
use super::probe::{Probe, probe};
use super::publisher::Publisher;
use super::worker::POSTGRES_ADVICE;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

const CLUSTER_FIRST: Duration = Duration::from_millis(200);
const CLUSTER_MOST: Duration = Duration::from_secs(2);
const HOLDS_EVERY: Duration = Duration::from_millis(500);

/// The holds, which are rows in the database: all relays agree on them.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Holds {
    /// How many topics are held, and how many keys blocked.
    async fn count(&mut self) -> Result<Waiting, Fault>;
    /// Some of the held topics, with the reasons, for people.
    async fn held(&mut self) -> Result<Vec<(String, String)>, Fault>;
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
    let held = if waiting.topics == 0 { Vec::new() } else { holds.held().await? };
    relay.stats.name_held(&held);
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
