//! The second stage: reads the claim slice by slice, sends the rows, and waits for the reports.
//!
//! If there is no backlog, the claim becomes a *flow*: it keeps reading and sending new rows in its transaction for up to `flow_window`.
//!
//! A claim costs two transactions and a scan, however few rows there are. A flow shares this cost among all rows of its
//! window, and delivers a row after one read.
//!
//! A flow that waited for the reports of a silent partition would delay the rows of all other partitions, because it usually
//! holds every lane. It therefore continues beyond its window while reports are overdue.
//!
//! Order: writers of a key take turns, so a snapshot that contains a row contains every earlier row of its key. Each of those
//! was read before or is part of the search, so a flow sends a prefix of each key. docs/design/flows.md has the rules, and
//! `crates/relay/tests/model` checks them.

use crate::cycle::claim::{Claimed, PlannedRead, SLICE_ROWS_MAX};
use crate::cycle::narrow::read_head;
use crate::cycle::reports::{collect_reports, flows_on, not_acknowledged, wait_for_reports};
use crate::cycle::session::Tally;
use crate::{
    Batch, Claim, Epoch, Event, FaultKind, Marks, Memory, PostgresFault, Producer, Publisher, ReadEnd, Relay,
    Search, SearchResult, SeenIds, Session, fail_point,
};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// After this time without all reports, a partition may be silent.
const PROMPT: Duration = Duration::from_millis(50);

/// Reads and publishes the rows of the claim. A fault is stored in `claimed`.
pub(super) async fn publish<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
) {
    let published = if relay.lanes.narrowing.reads_head(&claimed.planned.lanes) {
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
    if session.failure.is_some() {
        claimed.keep_during(relay, collect_reports(session, batch)).await;
    }
}

async fn read_and_send<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
) -> Result<(), PostgresFault> {
    read(relay, &mut claimed.claim, &mut claimed.planned, batch).await?;
    let deadline = claimed.deadline;
    // Send all rows at once. Slice by slice, they would be sent in many small requests.
    let sending = timeout_at(deadline, session.send(&relay.kafka.topics, batch, 0));
    if claimed.keep_during(relay, sending).await.is_err() {
        session.close(not_acknowledged(relay, session));
    }
    if claimed.fault.is_none() {
        fail_point::reach("rows-sent").await;
        // A claim for rare rows ends without a flow, unless a silent partition would stop the other rows of its lanes.
        let flows = relay.lanes.board.arrives_often.get() || {
            let prompt = timeout(PROMPT, session.finish(batch));
            claimed.keep_during(relay, prompt).await.is_err()
        };
        if flows {
            flow(relay, session, claimed, batch).await;
        }
        let (deadline, overdue) = (claimed.deadline, claimed.flow.overdue);
        fail_point::reach("waiting-for-reports").await;
        // Wait once for all reports, because each wait restarts the time until the next `SELECT 1`.
        claimed.keep_during(relay, wait_for_reports(relay, session, batch, overdue, deadline)).await;
    }
    Ok(())
}

async fn read<C: Claim, P>(
    relay: &Relay<P>,
    claim: &mut C,
    planned: &mut PlannedRead,
    batch: &mut Batch<C::Event>,
) -> Result<(), PostgresFault> {
    // Use the same limits for the whole batch, even if a reload changes them meanwhile.
    let limits = relay.settings.limits();
    batch.set_shares(planned.read.wanted.iter().map(|wanted| wanted.share));
    let failed = |fault: &PostgresFault| {
        relay.lanes.narrowing.read_failed(&planned.lanes, planned.read.rows_max, fault);
    };
    if !planned.sent {
        claim.read(&planned.read).await.inspect_err(failed)?;
    }
    fail_point::reach("read-sent").await;
    loop {
        let bytes_left = limits.batch_bytes.saturating_sub(batch.bytes);
        let rows = relay
            .memory
            .rows_in(bytes_left)
            .min(limits.batch_rows.saturating_sub(batch.len()))
            .min(SLICE_ROWS_MAX);
        let read = claim.next_slice(rows, bytes_left, batch.rows_mut()).await;
        let from = batch.appended(read.as_ref().map_or(ReadEnd::Cut, |slice| slice.end));
        let slice = read.inspect_err(|fault| {
            relay.memory.note_failed_slice(limits.batch_bytes);
            failed(fault);
        })?;
        batch.read_under(slice.hold_version, slice.epoch);
        let rows = &batch.rows()[from..];
        relay.memory.note_row_size(rows);
        note_slice(&mut relay.lanes.marks.borrow_mut(), planned.marks.generation, slice.epoch, rows);
        if let Some(search) = &mut planned.search {
            search.add(rows.iter().map(Event::id));
        }
        relay.memory.mark_acknowledged(batch, from);
        if relay.memory.probes_any_of(&batch.rows()[from..]) {
            batch.cut();
            return Err(probed_just_now());
        }
        let full = batch.len() >= limits.batch_rows || batch.bytes >= limits.batch_bytes;
        if slice.end == ReadEnd::More && full {
            batch.cut();
        }
        if slice.end != ReadEnd::More || full {
            relay.lanes.narrowing.read_took(planned.lanes.len(), planned.begun.elapsed());
            return Ok(());
        }
        fail_point::reach("between-slices").await;
    }
}

/// Passes the epoch and the ids of a slice to the marks.
fn note_slice<E: Event>(marks: &mut Marks, generation: u64, epoch: Epoch, rows: &[E]) {
    marks.note_epoch(generation, epoch);
    marks.note_ids(generation, rows.iter().map(Event::id));
}

fn probed_just_now() -> PostgresFault {
    let message = "a probe of its topic has an event of this claim in flight".to_owned();
    PostgresFault { kind: FaultKind::Probed, doing: "reading events", message }
}

/// Records which topics accepted rows. This comes before refused rows are judged, because rows that were sent before a refused one
/// show nothing about those after it.
pub(super) fn accepted<E: Event, P: Producer>(memory: &Memory, session: &Session<P>, batch: &Batch<E>) {
    if !memory.streaks.is_empty() {
        session.tally(batch).for_each(|(topic, _)| memory.streaks.accepted(topic, 0));
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
        relay.health.acknowledged_at.set(Some(Instant::now()));
    }
    relay.settings.published(relay.stats.notes.throttle().is_some(), session.publishing());
    let first_sent = session.publishing().filter(|_| acknowledged).map(|lasted| Instant::now() - lasted);
    if let Some(at) = first_sent {
        relay.kafka.gate.acknowledged(at);
    }
}

/// The time from the end of a read that found rows to the next one.
const READ_EVERY: Duration = Duration::from_millis(3);
/// The same for a read that found none.
const READ_AFTER_NONE: Duration = Duration::from_millis(5);
/// A flow ends after this time without a new row.
const IDLE: Duration = Duration::from_millis(20);

/// Keeps reading and sending new rows until the flow ends. A fault is stored in `claimed`.
pub(super) async fn flow<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
) {
    let window = relay.settings.limits().flow_window;
    let may_flow = relay.lanes.narrowing.allows_all() && !relay.memory.settling_is_refused.get();
    if window.is_zero() || !may_flow || !batch.is_complete(&claimed.lanes) {
        return;
    }
    let Some(mut search) = claimed.planned.search.take() else { return };
    // The first read may have left too many gaps to search for.
    if !search.pass(claimed.planned.marks.fenced) {
        return;
    }
    let begun = Instant::now();
    let renewals = relay.settings.renewals();
    let mut rows_at = begun;
    let (mut has_rows, mut arriving) = (false, false);
    let mut read_at = begun + READ_EVERY;
    batch.flows();
    while claimed.fault.is_none() {
        sleep_until(read_at).await;
        session.absorb(batch);
        claimed.measure_latency(relay, batch, batch.first_unacknowledged(claimed.flow.measured));
        let ends = relay.lanes.board.is_stopped()
            || !relay.kafka.gate.is_open()
            || relay.settings.renewals() != renewals
            || session.leaves_rows(batch);
        arriving = has_rows && rows_at.elapsed() < IDLE;
        let ends_window = begun.elapsed() >= window || rows_at.elapsed() >= IDLE;
        let is_over = claimed.flow.overdue.is_some() || ends_window;
        if ends || is_over {
            // Reports that arrive while the flow waits for them show that Kafka works at its end.
            claimed.flow.acknowledged = batch.sent().count();
        }
        if ends || (is_over && !flows_on(relay, session, claimed, batch).await) {
            break;
        }
        fail_point::reach("flowing").await;
        if let Err(fault) = record(relay, claimed, batch).await {
            claimed.fault = Some(fault);
            break;
        }
        claimed.extend_deadline(relay);
        let step = step(relay, session, claimed, batch, &mut search).await;
        claimed.flow.finds_rows = matches!(step, Ok(Step::Rows));
        match step {
            Ok(Step::Rows) => (has_rows, rows_at) = (true, Instant::now()),
            Ok(Step::NoRows) => {}
            Ok(Step::Last) => {
                claimed.flow.acknowledged = batch.sent().count();
                break;
            }
            Err(fault) => claimed.fault = Some(fault),
        }
        read_at = Instant::now() + if claimed.flow.finds_rows { READ_EVERY } else { READ_AFTER_NONE };
    }
    session.absorb(batch);
    claimed.flow.is_arriving = claimed.fault.is_none() && arriving;
    claimed.extend_deadline(relay);
}

/// Records the acknowledged rows at the start of the batch as sent, if there are enough of them.
async fn record<C: Claim, P>(
    relay: &Relay<P>,
    claimed: &mut Claimed<C>,
    batch: &Batch<C::Event>,
) -> Result<(), PostgresFault> {
    let rows = claimed.flow.recorded..claimed.flow.measured;
    if rows.len() < relay.settings.limits().flow_records || claimed.skips_locked {
        return Ok(());
    }
    let sent: Vec<&C::Event> = batch.sent_in(rows.clone()).collect();
    let recorded = claimed.claim.record_sent(&sent).await.inspect_err(|fault| {
        relay.lanes.narrowing.settlement_failed(&claimed.lanes, fault);
        relay.memory.note_settlement(Some(fault));
    })?;
    fail_point::reach("recorded").await;
    claimed.flow.recorded = rows.end;
    claimed.flow.missed |= !recorded;
    Ok(())
}

enum Step {
    Rows,
    NoRows,
    Last,
}

async fn step<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
    search: &mut SeenIds,
) -> Result<Step, PostgresFault> {
    let limits = relay.settings.limits();
    let generation = claimed.planned.marks.generation;
    let bytes_max = limits.batch_bytes.saturating_sub(batch.bytes);
    let rows_max = relay.memory.rows_in(bytes_max).min(SLICE_ROWS_MAX);
    // Note the fence before the read is sent. Otherwise an id below it could commit after the read's snapshot.
    let (fenced, excepted) = {
        let marks = relay.lanes.marks.borrow();
        (marks.fence.passed, marks.fence.excepted())
    };
    // The rows of a transaction that was excepted and has ended are not part of the search.
    if excepted.ended != claimed.planned.marks.excepted.ended {
        return Ok(Step::Last);
    }
    let request = Search {
        above: search.highest,
        gaps: search.gaps(),
        hold_version: batch.hold_version,
        epoch: batch.epoch,
        excepted: excepted.xids,
        rows_max: relay.memory.rows_max(limits.batch_rows).saturating_sub(batch.len()).min(rows_max),
        bytes_max,
        expects_rows: claimed.flow.finds_rows,
        expects_free: relay.memory.holds_seen(batch.hold_version).nothing_held,
    };
    if request.rows_max == 0 || request.bytes_max == 0 {
        return Ok(Step::Last);
    }
    let mut rows = Vec::new();
    let found = claimed.claim.read_on(&request, &mut rows).await.inspect_err(|fault| {
        relay.lanes.narrowing.read_failed(&claimed.planned.lanes, request.rows_max, fault);
    })?;
    let same = note(&mut relay.lanes.marks.borrow_mut(), generation, &found, &request, &rows);
    if !same || relay.memory.probes_any_of(&rows) {
        return Ok(Step::Last);
    }
    search.add(found.ids.iter().copied());
    let is_known = search.pass(fenced);
    if rows.is_empty() {
        return Ok(if found.cut || !is_known { Step::Last } else { Step::NoRows });
    }
    let from = batch.extend(rows);
    relay.memory.note_row_size(&batch.rows()[from..]);
    relay.memory.mark_acknowledged(batch, from);
    let sending = timeout_at(claimed.deadline, session.send(&relay.kafka.topics, batch, from));
    if claimed.keep_during(relay, sending).await.is_err() {
        session.close(not_acknowledged(relay, session));
    }
    Ok(if found.cut || !is_known { Step::Last } else { Step::Rows })
}

/// Passes what a read found to the marks. Returns whether the flow may continue: the generation, the holds and the epoch
/// have not changed.
fn note<E: Event>(
    marks: &mut Marks,
    generation: u64,
    found: &SearchResult,
    request: &Search,
    rows: &[E],
) -> bool {
    marks.note_epoch(generation, found.epoch);
    marks.note_ids(generation, rows.iter().map(Event::id));
    marks.note_seen(generation, &found.ids);
    marks.generation == generation
        && found.hold_version == request.hold_version
        && found.epoch == request.epoch
}
