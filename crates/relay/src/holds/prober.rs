//! The prober: detects when Kafka or a held topic is available again.

use crate::health::availability::PROBER;
use crate::health::stats::TOPICS_NAMED_MAX;
use crate::holds::probe::Probes;
use crate::holds::{Counts, Holds, ReportedPauses, Waiting};
use crate::{Availability, Backoff, FaultKind, Outbox, PostgresFault, Publisher, Relay, fail_point};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const CLUSTER_FIRST: Duration = Duration::from_millis(200);
const CLUSTER_MOST: Duration = Duration::from_secs(2);
const CLUSTER_PROBES_MOST: usize = 6;
/// If no row is left to prove that Kafka works, an outage that no probe detects ends after this time without a failure.
const QUIET: Duration = Duration::from_secs(15);
const QUIET_CHECK_EVERY: Duration = Duration::from_secs(1);
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

/// Waits until the last failure is [`QUIET`] ago while all workers are idle: no row is left to prove that Kafka works.
async fn quiet<P>(relay: &Relay<P>) {
    while relay.kafka.gate.since_failure().is_none_or(|time| time < QUIET)
        || relay.stats.workers_busy.get() > 0
    {
        sleep(QUIET_CHECK_EVERY).await;
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
        note(&outage, refresh(&relay, &mut holds, &mut reported).await);
        sleep(HOLDS_EVERY).await;
    }
}

#[derive(Default)]
struct Reported {
    pauses: ReportedPauses,
    /// The version of the set of holds of which topics were named, and when.
    topics: Option<(i64, Instant)>,
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
    let Counts { everything, topics, keys } = waiting.paused;
    relay.stats.count_pauses(everything, topics, keys);
    relay.memory.nothing_held_at.set(waiting.is_empty().then_some(waiting.hold_version));
    // The server sorts all holds for the sample. If they do not change, the reasons change seldom.
    let is_named = |(version, at): (i64, Instant)| {
        waiting.topics > TOPICS_NAMED_MAX as i64
            && version == waiting.hold_version
            && at.elapsed() < NAMED_FOR
    };
    if !reported.topics.is_some_and(is_named) {
        reported.topics = Some((waiting.hold_version, asked));
        name_held(relay, holds, &waiting, asked).await?;
    }
    if reported.pauses.is_older_than(waiting.hold_version) {
        let pauses = if waiting.paused.total() == 0 { Vec::new() } else { holds.pauses().await? };
        reported.pauses.update(waiting.hold_version, &pauses);
    }
    Ok(())
}

/// Names the held topics in the metrics, and logs those that another relay or an operator has released.
async fn name_held<P, H: Holds>(
    relay: &Relay<P>,
    holds: &mut H,
    waiting: &Waiting,
    asked: Instant,
) -> Result<(), PostgresFault> {
    let held = if waiting.topics == 0 { Vec::new() } else { holds.held().await? };
    relay.stats.name_held(&held);
    if held.len() as i64 == waiting.topics {
        relay.memory.holds.only(asked, &held);
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
            probes.give_up();
            relay.opened().await;
            if relay.lanes.board.is_stopped() {
                return;
            }
            probes.make_due();
        }
        tokio::select! {
            biased;
            () = relay.lanes.board.stopped() => {}
            () = sleep(HOLDS_EVERY) => {}
        }
    }
    note(&outage, probes.end().await);
}
