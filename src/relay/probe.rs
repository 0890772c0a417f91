//! The probe of a held topic: one row of it is published alone, as a batch of its own, under the lock of its lane, and
//! settled if Kafka acknowledges it. Metadata alone would not tell whether the topic can be written to.

use super::Relay;
use super::cycle::alive;
use super::event::Event;
use super::failure::{Failure, FailureKind, Fault, FaultKind};
use super::marks::LOWEST;
use super::outbox::{Claim, Outbox, Read, Settled, Settlement};
use super::partition;
use super::prober::{Due, Holds, Witness};
use super::publisher::{Judged, Publisher};
use super::reason::REJECTS_EVERYTHING;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long the lane of a probe's row is tried for, which another relay may have in hand.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);
const CLAIM_EVERY: Duration = Duration::from_millis(20);

/// What a probe says.
pub enum Probe {
    /// Its rows may flow.
    Works,
    /// They may not.
    Fails(Failure),
    /// Somebody else has the row.
    Unknown,
}

/// Probes a topic.
pub async fn probe<P: Publisher, H: Holds, O: Outbox>(
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
    if timeout(relay.limits().publish_timeout, relay.board.reserve(witness.lane)).await.is_err() {
        relay.board.forgo(witness.lane);
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
        let claim = outbox.claim(&[witness.lane], None).await?;
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
    let read = Read {
        lows: vec![LOWEST],
        basis: -1,
        rows_max: 1,
        shares: vec![1],
        first_of_key_of: Some(witness.id),
    };
    claim.read(&read).await?;
    let mut rows = Vec::new();
    let read = claim.next_slice(1, usize::MAX, &mut rows).await;
    if matches!(&read, Err(fault) if fault.kind == FaultKind::Data) {
        // What cannot be read cannot be tried. A worker's claim has to decide about the row, which it reads only if its
        // topic is not held.
        return Ok(Probe::Works);
    }
    read?;
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
    let judging =
        timeout(relay.limits().publish_timeout, relay.publisher.judge(&due.topic, partition, &alone));
    let (judged, kept) = alive(relay, &mut claim, judging).await;
    let failure = match judged {
        Ok(Judged { failure: None, .. }) => None,
        Ok(Judged { failure: Some(failure), .. }) => Some(failure),
        Err(_) => Some(Failure::unknown("no answer to a single event")),
    };
    match failure {
        None => {
            if let Err(fault) = kept {
                relay.acknowledged.borrow_mut().keep(std::iter::once(row), -1);
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
            let answers = failure.kind == FailureKind::Row && due.reason != REJECTS_EVERYTHING.word;
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
    if !matches!(settled, Ok(Settled::All)) {
        relay.acknowledged.borrow_mut().keep(std::iter::once(row), -1);
    }
    if settled.is_ok() {
        relay.stats.published.inc();
    }
    settled.map(|_| ())
}
