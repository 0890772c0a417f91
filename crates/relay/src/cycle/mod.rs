//! The cycle: claim, publish, settle. It is one transaction, which stays open until Kafka has answered.
//!
//! | Stage | File | What it does |
//! |---|---|---|
//! | claim | `claim.rs` | locks lanes and plans the read |
//! | publish | `publish.rs` | reads slice by slice, sends the rows, waits for the reports |
//! | read on | `publish.rs` | if there is no backlog: reads and sends what is new, until the flow ends |
//! | judge | `judge.rs` | publishes refused rows again, on separate producers and in order |
//! | settle | here | records the outcome and commits |
//! | confirm | here | raises the marks once the COMMIT is confirmed |
//!
//! While the cycle waits for Kafka, a `SELECT 1` every `takeover_timeout / 3` keeps the claim alive.
//!
//! Three rules keep the order through every crash: a claim is a contiguous prefix of each key's unsent rows, a session never
//! leaves a gap, and only real acknowledgements are settled.

mod claim;
mod judge;
pub(crate) mod narrow;
mod publish;
pub mod session;
pub mod worker;

use crate::cycle::claim::{Claimed, Flow};
use crate::cycle::publish::Sending;
use crate::outbox::RejectedRow;
use crate::reason::SILENT_CONNECTION;
use crate::{
    Batch, Claim, Coverage, Event, FailureKind, KafkaFailure, Lane, MarksSnapshot, Memory, Outbox,
    PostgresFault, Publisher, Relay, Session, Settled, Settlement, fail_point,
};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

#[derive(Debug, Default)]
pub(crate) struct Cycle {
    /// The claimed lanes, and how far each of them was read.
    pub coverage: Vec<Coverage>,
    pub rows: usize,
    /// Rows settled as sent.
    pub sent: usize,
    /// Those of them that are known to be recorded. Others may be read again.
    pub recorded: usize,
    /// Those that Kafka had acknowledged in an earlier cycle.
    pub recovered: usize,
    pub publishing: Option<Duration>,
    pub failure: Option<KafkaFailure>,
    /// Why some suspects could not be judged.
    pub unjudged: Option<KafkaFailure>,
    /// A row could not be settled because another session has locked it.
    pub locked_out: bool,
    /// If so, the lanes of the rejected rows: it is unknown which of them were recorded.
    pub rejected: Vec<Lane>,
    flow: Flow,
}

impl Cycle {
    /// Whether the session failed although Kafka did not refuse anything.
    fn unanswered(&self) -> bool {
        let kind = |failure: &KafkaFailure| {
            failure.kind == FailureKind::Unknown || failure.reason == SILENT_CONNECTION.word
        };
        self.failure.as_ref().is_some_and(kind)
    }

    /// The number of rows that show that Kafka was available at the end: those that were acknowledged neither in an earlier cycle
    /// nor during a flow.
    fn acknowledged_at_end(&self) -> usize {
        self.sent.saturating_sub(self.flow.acknowledged.max(self.recovered))
    }
}

/// Runs one cycle over those of `lanes` that are free.
///
/// A fault ends the claim, and rows that Kafka has acknowledged enter the acknowledged set. Check [`Session::failure`]
/// afterwards: a failed session must be replaced, whatever this returns.
pub(crate) async fn run<O: Outbox, P: Publisher>(
    relay: &Relay<P>,
    outbox: &mut O,
    session: &mut Session<P::Producer>,
    lanes: &[Lane],
    around_locks: bool,
) -> Result<Cycle, PostgresFault> {
    let Some(mut claimed) = claim::claim(relay, outbox, lanes, around_locks).await? else {
        return Ok(Cycle::default());
    };
    let limits = relay.settings.limits();
    let on_rejected = relay.lanes.narrowing.on_rejected(lanes, limits.on_rejected);
    let batch = Batch::new(on_rejected).holding_after(limits.rejections_before_hold);
    session.begin(&relay.memory.streaks);
    let mut sending = Sending { relay, session, batch };
    sending.publish(&mut claimed).await;
    sending.note_accepted();
    let unjudged = judge_suspects(&mut sending, &mut claimed).await;
    // Process reports that arrived while other rows were judged.
    sending.session.absorb(&mut sending.batch);
    sending.count_acknowledged();
    let Sending { session, batch, .. } = sending;
    claimed.measure_latency(relay, &batch, batch.len());
    let publishing = session.publishing_since.map(|since| since.elapsed());

    let Claimed { claim, planned, lanes: owned, fault, flow, .. } = claimed;
    let settled = match fault {
        None => {
            let mut settlement = Settlement {
                sent: batch.sent_in(flow.recorded..batch.len()).collect(),
                rejected: batch.dead_letters().collect(),
                blocked: batch.blocked(around_locks).collect(),
                held: session.held(&batch),
                around_locks,
            };
            let (recorded, begun) = (settlement.sent.len() + settlement.rejected.len(), Instant::now());
            let settled = settle(relay, claim, &mut settlement, &flow).await;
            match &settled {
                Ok(_) => relay.lanes.narrowing.rows.worked(recorded, begun.elapsed()),
                Err(fault) => relay.lanes.narrowing.settlement_failed(&owned, batch.len(), fault),
            }
            settled
        }
        Some(fault) => Err(fault),
    };
    match settled {
        Ok(settled) => {
            let failure = session.failure.clone();
            let settled = with_flow(settled, &batch, &flow);
            let confirmed = confirm(relay, &planned.marks, &owned, &batch, &settled);
            Ok(Cycle { publishing, failure, unjudged, flow, ..confirmed })
        }
        Err(fault) => {
            keep_acknowledged(&relay.memory, &owned, &batch);
            Err(fault)
        }
    }
}

/// Judges the rows that Kafka refused, until the deadline. Returns why some of them could not be judged.
async fn judge_suspects<C: Claim, P: Publisher>(
    sending: &mut Sending<'_, C::Event, P>,
    claimed: &mut Claimed<C>,
) -> Option<KafkaFailure> {
    // Without the claim, another relay may already publish the rows of these lanes.
    if claimed.fault.is_some() || !sending.batch.has_suspects() {
        return None;
    }
    let relay = sending.relay;
    let judging = timeout_at(claimed.deadline, judge::judge(sending));
    let judged = claimed.keep_during(relay, judging).await;
    judged.unwrap_or_else(|_| Some(sending.not_acknowledged()))
}

async fn settle<C: Claim, P>(
    relay: &Relay<P>,
    claim: C,
    settlement: &mut Settlement<'_, C::Event>,
    flow: &Flow,
) -> Result<Settled, PostgresFault> {
    relay.memory.holds.leave_out(settlement);
    let only_sent =
        settlement.rejected.is_empty() && settlement.blocked.is_empty() && settlement.held.is_empty();
    if only_sent && settlement.sent.is_empty() && flow.recorded == 0 {
        claim.release().await?;
        return Ok(Settled::All);
    }
    fail_point::reach("before-settlement").await;
    let settled = claim.settle(settlement).await.inspect_err(|fault| {
        relay.memory.holds.not_settled(settlement, fault);
        if only_sent {
            relay.memory.note_settlement(Some(fault));
        }
    })?;
    fail_point::reach("committed").await;
    let recorded = |rejected: &&RejectedRow<'_, C::Event>| settled.has_recorded(rejected.row);
    for rejected in settlement.rejected.iter().filter(recorded) {
        relay.stats.dead_letters.inc();
        relay.health.rejected(rejected, "moved to the dead letters (see `outbox-relay dead-letters list`)");
    }
    for rejected in settlement.blocked.iter().filter(recorded) {
        relay.health.rejected(rejected, "key blocked (see `outbox-relay blocked-keys list`)");
    }
    for held in &settlement.held {
        relay.memory.holds.recorded(held, &relay.stats);
    }
    Ok(settled)
}

/// Adds what the flow has recorded before the settlement.
fn with_flow<E: Event>(settled: Settled, batch: &Batch<E>, flow: &Flow) -> Settled {
    match settled {
        _ if flow.missed => Settled::Only(HashSet::new()),
        Settled::Only(mut ids) => {
            ids.extend(batch.sent_in(0..flow.recorded).map(Event::id));
            Settled::Only(ids)
        }
        Settled::All => Settled::All,
    }
}

/// Raises the marks and removes settled rows from the acknowledged set. The COMMIT must be confirmed.
fn confirm<E: Event, P>(
    relay: &Relay<P>,
    snapshot: &MarksSnapshot,
    owned: &[Lane],
    batch: &Batch<E>,
    settled: &Settled,
) -> Cycle {
    if batch.sent().next().is_some() {
        relay.memory.note_settlement(None);
        if *settled == Settled::All {
            relay.memory.has_recorded.set(true);
        }
    }
    let coverage = batch.coverage(owned);
    let hold_version = batch.hold_version;
    let mut acknowledged = relay.memory.acknowledged.borrow_mut();
    acknowledged.forget(&coverage, batch.rows(), relay.memory.holds_seen(hold_version));
    if *settled == Settled::All {
        relay.lanes.marks.borrow_mut().raise(snapshot, batch.epoch, &coverage);
    }
    // If it is unknown which rows were not recorded, this keeps all. Rows that are not read again are removed later.
    acknowledged.keep(batch.sent().filter(|row| !settled.has_recorded(*row)), hold_version);
    let (locked_out, sent) = (*settled != Settled::All, batch.sent().count());
    let rejected = batch.dead_letters().chain(batch.blocked(false)).map(|rejected| rejected.row.lane());
    Cycle {
        coverage,
        rows: batch.len(),
        sent,
        recorded: if locked_out {
            batch.sent().filter(|row| settled.has_recorded(*row)).count()
        } else {
            sent
        },
        recovered: batch.recovered,
        locked_out,
        rejected: rejected.filter(|_| locked_out).collect(),
        ..Cycle::default()
    }
}

/// Adds the acknowledged rows of a batch that was not settled to the acknowledged set.
fn keep_acknowledged<E: Event>(memory: &Memory, owned: &[Lane], batch: &Batch<E>) {
    let mut acknowledged = memory.acknowledged.borrow_mut();
    // Rows that the claim covered but did not read were settled by another relay.
    let unsettled: Vec<&E> = batch.rows().iter().filter(|row| acknowledged.contains(*row)).collect();
    let seen = memory.holds_seen(batch.hold_version);
    acknowledged.forget(&batch.coverage(owned), batch.rows(), seen);
    acknowledged.keep(unsettled.into_iter().chain(batch.sent()), seen.hold_version);
}

#[cfg(test)]
pub(crate) mod tests;
