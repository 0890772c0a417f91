//! The second stage: reads the claim slice by slice, sends the rows, and waits until every report has arrived or the
//! session has closed.

use crate::fail_point;
use crate::relay::Relay;
use crate::relay::cycle::claim::{Claimed, PlannedRead, SLICE_ROWS_MAX};
use crate::relay::cycle::flow;
use crate::relay::cycle::narrow::read_head;
use crate::relay::cycle::session::{Session, Tally};
use crate::relay::event::Event;
use crate::relay::failure::{Failure, Fault, FaultKind};
use crate::relay::holds::isolation;
use crate::relay::lanes::marks::Marks;
use crate::relay::outbox::{Claim, ReadEnd};
use crate::relay::publisher::{Producer, Publisher};
use crate::relay::rows::batch::Batch;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How long to wait after a failure for the reports of records that are already being sent.
const COLLECT_REPORTS_WITHIN: Duration = Duration::from_secs(2);
/// After this share of `publish_timeout` without a report, the relay checks whether only some partitions are silent. Their
/// topics are stuck. This is longer than most leader changes, but short because other rows of the lanes wait meanwhile.
const STUCK_SHARE: u32 = 3;
const STUCK_CHECK_EVERY: Duration = Duration::from_secs(1);

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
        session.close(overdue(relay, session));
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
    let sending = timeout_at(deadline, session.send(&relay.template, batch, 0));
    if claimed.keep_during(relay, sending).await.is_err() {
        session.close(overdue(relay, session));
    }
    if claimed.fault.is_none() {
        fail_point::reach("rows-sent").await;
        flow::flow(relay, session, claimed, batch).await;
        let deadline = claimed.deadline;
        fail_point::reach("waiting-for-reports").await;
        // Wait once for all reports, because each wait restarts the time until the next `SELECT 1`.
        claimed.keep_during(relay, wait_for_reports(relay, session, batch, deadline)).await;
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

/// Waits until every report has arrived or the session has closed: at its first failure, at the deadline, or when a
/// partition stays silent while others are acknowledged. The topic of such a partition is held.
async fn wait_for_reports<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &mut Batch<E>,
    deadline: Instant,
) {
    let begun = Instant::now();
    let patience = relay.settings.limits().publish_timeout / STUCK_SHARE;
    let mut check_at = begun + patience;
    while check_at < deadline {
        if timeout_at(check_at, session.finish(batch)).await.is_ok() {
            return;
        }
        let silent_since = session.reported_at().unwrap_or(begun).max(begun);
        if silent_since.elapsed() < patience {
            check_at = silent_since + patience;
            continue;
        }
        // Other rows may have been acknowledged just before all of Kafka became unavailable.
        let answers = timeout_at(deadline, relay.publisher.probe()).await;
        session.absorb(batch);
        if matches!(answers, Ok(Ok(_))) {
            let mut silent = session.silent(batch);
            silent.sort_unstable();
            if let Some(failure) = isolation::cut_off(relay, silent).await {
                session.absorb(batch);
                return session.close(failure);
            }
            if session.hold_stuck(batch, relay.health.acknowledged_since(begun), patience) {
                return;
            }
        }
        check_at = Instant::now() + STUCK_CHECK_EVERY;
    }
    if timeout_at(deadline, session.finish(batch)).await.is_err() {
        session.close(overdue(relay, session));
    }
}

/// The failure of rows that are not acknowledged at the deadline, with what the client knows about the cause.
pub(super) fn overdue<P: Publisher>(relay: &Relay<P>, session: &Session<P::Producer>) -> Failure {
    let waited = relay.settings.limits().publish_timeout;
    let error = format!("Kafka did not acknowledge all records within the publish_timeout of {waited:?}");
    Failure::unknown(match session.last_error(waited) {
        Some(cause) => format!("{error}. Last error of the Kafka client: {cause}"),
        None => error,
    })
}

/// Waits briefly after the session has closed for the reports of rows that are already being sent.
async fn collect_reports<E: Event, P: Producer>(session: &mut Session<P>, batch: &mut Batch<E>) {
    session.absorb(batch);
    let _ = timeout(COLLECT_REPORTS_WITHIN, session.purge()).await;
    session.absorb(batch);
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
        relay.rows.refusals.accepted(topic, 0);
        acknowledged = true;
    }
    if acknowledged {
        relay.health.kafka_acknowledged();
    }
    let first_sent = session.publishing().filter(|_| acknowledged).map(|lasted| Instant::now() - lasted);
    if first_sent.is_some_and(|at| relay.gate.acknowledged(at)) {
        relay.health.kafka_works();
    }
}
