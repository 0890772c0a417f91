//! The last two stages: settles the batch and commits, then raises the marks once the COMMIT is confirmed.
//!
//! Probes do not use this module. They settle their rows in `holds/flight.rs`.

use crate::Relay;
use crate::cycle::Cycle;
use crate::cycle::claim::Recorded;
use crate::cycle::session::Session;
use crate::event::Event;
use crate::fail_point;
use crate::failure::Fault;
use crate::lane::Lane;
use crate::lanes::marks::MarksSnapshot;
use crate::outbox::{Claim, Settled, Settlement};
use crate::publisher::Publisher;
use crate::rows::batch::Batch;

pub(super) async fn settle<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    claim: C,
    session: &Session<P::Producer>,
    batch: &Batch<C::Event>,
    recorded: Recorded,
    skip_locked: bool,
) -> Result<Settled, Fault> {
    let mut settlement = Settlement {
        sent: batch.sent_in(recorded.rows..batch.len()).collect(),
        rejected: batch.dead_letters().collect(),
        blocked: batch.blocked(skip_locked).collect(),
        held: session.held(batch),
        skip_locked,
    };
    relay.holds.leave_out(&mut settlement);
    if settlement.is_empty() && recorded.rows == 0 {
        claim.release().await?;
        return Ok(Settled::All);
    }
    fail_point::reach("before-settlement").await;
    let only_sent =
        settlement.rejected.is_empty() && settlement.blocked.is_empty() && settlement.held.is_empty();
    let settled = claim.settle(&settlement).await.inspect_err(|fault| {
        relay.holds.not_settled(&settlement, fault);
        if only_sent {
            relay.rows.note_settlement(Some(fault));
        }
    })?;
    fail_point::reach("committed").await;
    report(relay, &settlement);
    Ok(if recorded.all { settled } else { Settled::Fewer })
}

/// Counts and logs what a settlement has recorded.
fn report<E: Event, P>(relay: &Relay<P>, settlement: &Settlement<'_, E>) {
    for rejected in &settlement.rejected {
        relay.stats.dead_letters.inc();
        relay.health.rejected(rejected, "moved to the dead letters (see `outbox-relay dead-letters list`)");
    }
    for rejected in &settlement.blocked {
        relay.health.rejected(rejected, "key blocked (see `outbox-relay blocked-keys list`)");
    }
    for held in &settlement.held {
        relay.holds.recorded(held, &relay.stats);
    }
}

/// Raises the marks and removes settled rows from the acknowledged set. The COMMIT must be confirmed.
pub(super) fn confirm<E: Event, P: Publisher>(
    relay: &Relay<P>,
    snapshot: &MarksSnapshot,
    owned: &[Lane],
    batch: &Batch<E>,
    settled: &Settled,
) -> Cycle {
    if batch.sent().next().is_some() {
        relay.rows.note_settlement(None);
        if *settled == Settled::All {
            relay.rows.note_recorded();
        }
    }
    let coverage = batch.coverage(owned);
    let hold_version = batch.hold_version();
    let mut acknowledged = relay.rows.acknowledged.borrow_mut();
    acknowledged.forget(&coverage, batch.rows(), relay.rows.holds_seen(hold_version));
    match settled {
        Settled::All => relay.marks.borrow_mut().raise(snapshot, batch.basis(), &coverage),
        Settled::Only(recorded) => {
            acknowledged.keep(batch.sent().filter(|row| !recorded.contains(&row.id())), hold_version);
        }
        // It is unknown which rows were not recorded, so keep all. Rows that are not read again are removed later.
        Settled::Fewer => acknowledged.keep(batch.sent(), hold_version),
    }
    Cycle {
        coverage,
        rows: batch.len(),
        sent: batch.sent().count(),
        recovered: batch.recovered_rows(),
        locked_out: *settled != Settled::All,
        ..Cycle::default()
    }
}

/// Adds the acknowledged rows of a batch that was not settled to the acknowledged set.
pub(super) fn keep_acknowledged<E: Event, P>(relay: &Relay<P>, owned: &[Lane], batch: &Batch<E>) {
    let mut acknowledged = relay.rows.acknowledged.borrow_mut();
    // Rows that the claim covered but did not read were settled by another relay.
    let unsettled: Vec<&E> = batch.rows().iter().filter(|row| acknowledged.contains(*row)).collect();
    let seen = relay.rows.holds_seen(batch.hold_version());
    acknowledged.forget(&batch.coverage(owned), batch.rows(), seen);
    acknowledged.keep(unsettled.into_iter().chain(batch.sent()), seen.hold_version);
}
