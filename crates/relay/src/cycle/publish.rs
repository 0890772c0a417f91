//! The second stage: reads the claim slice by slice, sends the rows, and waits for the reports.

use crate::Relay;
use crate::cycle::claim::{Claimed, PlannedRead, SLICE_ROWS_MAX};
use crate::cycle::flow;
use crate::cycle::narrow::read_head;
use crate::cycle::reports::{collect_reports, not_acknowledged, wait_for_reports};
use crate::cycle::session::{Session, Tally};
use crate::event::Event;
use crate::fail_point;
use crate::failure::{Fault, FaultKind};
use crate::lanes::marks::Marks;
use crate::outbox::{Claim, ReadEnd};
use crate::publisher::Publisher;
use crate::rows::batch::Batch;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// After this time without all reports, a partition may be silent.
const PROMPT: Duration = Duration::from_millis(50);

/// Reads and publishes the rows of the claim. A fault is stored in `claimed`.
pub(super) async fn publish<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
) {
    let published = if relay.narrowing.reads_head(&claimed.planned.lanes) {
        read_head(relay, &mut claimed.claim, &claimed.planned, batch).await
    } else {
        read_and_send(relay, session, claimed, batch).await
    };
    if let Err(fault) = published {
        claimed.fault = Some(fault);
    }
    let deadline = claimed.deadline;
    // After a fault, rows may still be in flight. Their reports must arrive before the next batch, which reuses the indexes.
    if claimed.fault.is_some()
        && claimed.keep_during(relay, timeout_at(deadline, session.finish(batch))).await.is_err()
    {
        session.close(not_acknowledged(relay, session));
    }
    if session.failure().is_some() {
        claimed.keep_during(relay, collect_reports(session, batch)).await;
    }
}

async fn read_and_send<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
) -> Result<(), Fault> {
    read(relay, &mut claimed.claim, &mut claimed.planned, batch).await?;
    let deadline = claimed.deadline;
    // Send all rows at once. Slice by slice, they would be sent in many small requests.
    let sending = timeout_at(deadline, session.send(&relay.topics, batch, 0));
    if claimed.keep_during(relay, sending).await.is_err() {
        session.close(not_acknowledged(relay, session));
    }
    if claimed.fault.is_none() {
        fail_point::reach("rows-sent").await;
        // A claim for rare rows ends without a flow, unless a silent partition would stop the other rows of its lanes.
        let flows = relay.board.arrives_often() || {
            let prompt = timeout(PROMPT, session.finish(batch));
            claimed.keep_during(relay, prompt).await.is_err()
        };
        if flows {
            flow::flow(relay, session, claimed, batch).await;
        }
        let (deadline, overdue) = (claimed.deadline, claimed.overdue);
        fail_point::reach("waiting-for-reports").await;
        // Wait once for all reports, because each wait restarts the time until the next `SELECT 1`.
        claimed.keep_during(relay, wait_for_reports(relay, session, batch, overdue, deadline)).await;
    }
    Ok(())
}

/// Reads the claim slice by slice, up to the limits of a batch.
async fn read<C: Claim, P>(
    relay: &Relay<P>,
    claim: &mut C,
    planned: &mut PlannedRead,
    batch: &mut Batch<C::Event>,
) -> Result<(), Fault> {
    // Use the same limits for the whole batch, even if a reload changes them meanwhile.
    let limits = relay.settings.limits();
    batch.set_shares(&planned.read.shares);
    let failed = |fault: &Fault| relay.narrowing.read_failed(&planned.lanes, planned.read.rows_max, fault);
    if !planned.sent {
        claim.read(&planned.read).await.inspect_err(failed)?;
    }
    fail_point::reach("read-sent").await;
    loop {
        let bytes_left = limits.batch_bytes.saturating_sub(batch.bytes());
        let rows = relay
            .rows
            .rows_in(bytes_left)
            .min(limits.batch_rows.saturating_sub(batch.len()))
            .min(SLICE_ROWS_MAX);
        let read = claim.next_slice(rows, bytes_left, batch.rows_mut()).await;
        let from = batch.appended(read.as_ref().map_or(ReadEnd::Cut, |slice| slice.end));
        let slice = read.inspect_err(|fault| {
            relay.rows.note_failed_slice(limits.batch_bytes);
            failed(fault);
        })?;
        batch.read_under(slice.hold_version, slice.basis);
        let rows = &batch.rows()[from..];
        relay.rows.note_row_size(rows);
        note_slice(&mut relay.marks.borrow_mut(), planned.marks.epoch(), slice.basis, rows);
        if let Some(search) = &mut planned.search {
            search.add(rows.iter().map(Event::id));
        }
        relay.rows.mark_acknowledged(batch, from);
        if relay.rows.probes_any_of(&batch.rows()[from..]) {
            batch.cut();
            return Err(probed_just_now());
        }
        let full = batch.len() >= limits.batch_rows || batch.bytes() >= limits.batch_bytes;
        if slice.end == ReadEnd::More && full {
            batch.cut();
        }
        if slice.end != ReadEnd::More || full {
            relay.narrowing.read_took(planned.lanes.len(), planned.begun.elapsed());
            return Ok(());
        }
        fail_point::reach("between-slices").await;
    }
}

/// Passes the basis and the ids of a slice to the marks.
fn note_slice<E: Event>(marks: &mut Marks, epoch: u64, basis: i64, rows: &[E]) {
    marks.note_basis(epoch, basis);
    marks.note_ids(epoch, rows.iter().map(Event::id));
}

fn probed_just_now() -> Fault {
    let message = "a probe of its topic has an event of this claim in flight".to_owned();
    Fault { kind: FaultKind::Probed, doing: "reading events", message }
}

/// Records which topics accepted rows. This comes before refused rows are judged, because rows that were sent before a refused one
/// show nothing about those after it.
pub(super) fn accepted<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &Session<P::Producer>,
    batch: &Batch<E>,
) {
    if relay.rows.refusals.is_empty() {
        return;
    }
    for (topic, _) in session.tally(batch) {
        relay.rows.refusals.accepted(topic, 0);
    }
}

/// Counts what Kafka acknowledged, once all reports of the batch have arrived.
pub(super) fn reported<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &Session<P::Producer>,
    batch: &Batch<E>,
) {
    // Rows that were acknowledged in an earlier cycle are not part of it: they do not show that Kafka works now.
    let mut acknowledged = false;
    for (topic, Tally { rows, bytes }) in session.tally(batch) {
        relay.stats.count_topic(topic, rows, bytes);
        acknowledged = true;
    }
    if acknowledged {
        relay.health.kafka_acknowledged();
    }
    relay.settings.published(relay.stats.notes.throttle().is_some(), session.publishing());
    let first_sent = session.publishing().filter(|_| acknowledged).map(|lasted| Instant::now() - lasted);
    if first_sent.is_some_and(|at| relay.gate.acknowledged(at)) {
        relay.health.kafka_works();
    }
}
