//! A flow: if there is no backlog, a claim keeps reading and sending new rows in its transaction for up to `flow_window`.
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

use crate::Relay;
use crate::cycle::claim::{Claimed, Recorded, SLICE_ROWS_MAX};
use crate::cycle::reports::{flows_on, not_acknowledged};
use crate::cycle::session::Session;
use crate::event::Event;
use crate::fail_point;
use crate::failure::Fault;
use crate::lanes::seen::SeenIds;
use crate::outbox::{Claim, Search, SearchResult};
use crate::publisher::Publisher;
use crate::rows::batch::Batch;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

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
    let may_flow = relay.narrowing.allows_all() && !relay.rows.settling_is_refused();
    if window.is_zero() || !may_flow || !batch.is_complete(&claimed.lanes) {
        return;
    }
    let Some(mut search) = claimed.planned.search.take() else { return };
    // The first read may have left too many gaps to search for.
    if !search.pass(claimed.planned.marks.fenced()) {
        return;
    }
    let begun = Instant::now();
    let renewals = relay.settings.renewals();
    let mut rows_at = begun;
    let (mut has_rows, mut found_rows, mut arriving) = (false, false, false);
    let mut read_at = begun + READ_EVERY;
    batch.flows();
    while claimed.fault.is_none() {
        sleep_until(read_at).await;
        session.absorb(batch);
        claimed.measure_latency(relay, batch, batch.first_unacknowledged(claimed.measured));
        let ends = relay.board.is_stopped()
            || !relay.gate.is_open()
            || relay.settings.renewals() != renewals
            || session.leaves_rows(batch);
        arriving = has_rows && rows_at.elapsed() < IDLE;
        let ends_window = begun.elapsed() >= window || rows_at.elapsed() >= IDLE;
        let is_over = claimed.overdue.is_some() || ends_window;
        if ends || is_over {
            // Reports that arrive while the flow waits for them show that Kafka works at its end.
            claimed.flowed = batch.sent().count();
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
        match step(relay, session, claimed, batch, (&mut search, found_rows)).await {
            Ok(Step::Rows) => (found_rows, has_rows, rows_at) = (true, true, Instant::now()),
            Ok(Step::NoRows) => found_rows = false,
            Ok(Step::Last) => {
                claimed.flowed = batch.sent().count();
                break;
            }
            Err(fault) => claimed.fault = Some(fault),
        }
        read_at = Instant::now() + if found_rows { READ_EVERY } else { READ_AFTER_NONE };
    }
    session.absorb(batch);
    claimed.flowing = claimed.fault.is_none() && arriving;
    claimed.extend_deadline(relay);
}

/// Records the acknowledged rows at the start of the batch as sent, if there are enough of them.
async fn record<C: Claim, P>(
    relay: &Relay<P>,
    claimed: &mut Claimed<C>,
    batch: &Batch<C::Event>,
) -> Result<(), Fault> {
    let rows = claimed.recorded.rows..claimed.measured;
    if rows.len() < relay.settings.limits().flow_records || claimed.skips_locked {
        return Ok(());
    }
    let sent: Vec<&C::Event> = batch.sent_in(rows.clone()).collect();
    let recorded = claimed.claim.record_sent(&sent).await.inspect_err(|fault| {
        relay.narrowing.settlement_failed(&claimed.lanes, fault);
        relay.rows.note_settlement(Some(fault));
    })?;
    fail_point::reach("recorded").await;
    claimed.recorded = Recorded { rows: rows.end, all: claimed.recorded.all && recorded };
    Ok(())
}

enum Step {
    Rows,
    NoRows,
    /// The flow must end.
    Last,
}

/// Reads new rows and sends them.
async fn step<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
    (search, expects_rows): (&mut SeenIds, bool),
) -> Result<Step, Fault> {
    let limits = relay.settings.limits();
    let epoch = claimed.planned.marks.epoch();
    let bytes_max = limits.batch_bytes.saturating_sub(batch.bytes());
    let rows_max = relay.rows.rows_in(bytes_max).min(SLICE_ROWS_MAX);
    // Note the fence before the read is sent. Otherwise an id below it could commit after the read's snapshot.
    let (fenced, excepted) = {
        let marks = relay.marks.borrow();
        (marks.fence().passed(), marks.fence().excepted())
    };
    // The rows of a transaction that was excepted and has ended are not part of the search.
    if excepted.ended != claimed.planned.marks.excepted.ended {
        return Ok(Step::Last);
    }
    let request = Search {
        above: search.highest(),
        gaps: search.gaps(),
        hold_version: batch.hold_version(),
        basis: batch.basis(),
        excepted: excepted.xids,
        rows_max: relay.rows.rows_max(limits.batch_rows).saturating_sub(batch.len()).min(rows_max),
        bytes_max,
        expects_rows,
        expects_free: relay.rows.holds_seen(batch.hold_version()).nothing_held,
    };
    if request.rows_max == 0 || request.bytes_max == 0 {
        return Ok(Step::Last);
    }
    let mut rows = Vec::new();
    let found = claimed.claim.read_on(&request, &mut rows).await.inspect_err(|fault| {
        relay.narrowing.read_failed(&claimed.planned.lanes, request.rows_max, fault);
    })?;
    let same = note(relay, epoch, &found, &request, &rows);
    if !same || relay.rows.probes_any_of(&rows) {
        return Ok(Step::Last);
    }
    search.add(found.ids.iter().copied());
    let is_known = search.pass(fenced);
    if rows.is_empty() {
        return Ok(if found.cut || !is_known { Step::Last } else { Step::NoRows });
    }
    let from = batch.extend(rows);
    relay.rows.note_row_size(&batch.rows()[from..]);
    relay.rows.mark_acknowledged(batch, from);
    let sending = timeout_at(claimed.deadline, session.send(&relay.topics, batch, from));
    if claimed.keep_during(relay, sending).await.is_err() {
        session.close(not_acknowledged(relay, session));
    }
    Ok(if found.cut || !is_known { Step::Last } else { Step::Rows })
}

/// Passes what a read found to the marks. Returns whether the flow may continue: the epoch, the holds and the basis
/// have not changed.
fn note<E: Event, P>(
    relay: &Relay<P>,
    epoch: u64,
    found: &SearchResult,
    request: &Search,
    rows: &[E],
) -> bool {
    let mut marks = relay.marks.borrow_mut();
    marks.note_basis(epoch, found.basis);
    marks.note_ids(epoch, rows.iter().map(Event::id));
    marks.note_seen(epoch, &found.ids);
    marks.epoch() == epoch && found.hold_version == request.hold_version && found.basis == request.basis
}
