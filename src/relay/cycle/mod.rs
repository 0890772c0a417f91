//! The cycle: claim, publish, settle. One transaction, open until Kafka has answered.
//!
//! ```text
//!   claim lanes ─▶ read slice by slice ─▶ hand the rows to the session
//!                                        │
//!                                        ▼   SELECT 1 every takeover_timeout / 3
//!                  wait for the reports ─▶ judge suspects alone ─▶ settle and COMMIT ─▶ raise the marks
//! ```
//!
//! What keeps the order, whatever crashes: a claim is a contiguous prefix of each key's unsent rows, a session never
//! leaves a gap, and only real acknowledgements are settled.

pub mod backoff;
pub mod batch;
pub mod judge;
pub mod large_rows;
pub mod narrow;
pub mod partition;
pub mod refusals;
pub mod session;
pub mod width;
pub mod worker;

use crate::fail_point;
use crate::relay::Relay;
use crate::relay::cycle::batch::{Batch, Reach};
use crate::relay::cycle::judge::judge;
use crate::relay::cycle::narrow::look_at_first;
use crate::relay::cycle::session::Session;
use crate::relay::event::Event;
use crate::relay::failure::{Failure, Fault, FaultKind};
use crate::relay::holds::elsewhere;
use crate::relay::lane::Lane;
use crate::relay::lanes::marks::Start;
use crate::relay::outbox::{Claim, End, Outbox, Read, Settled, Settlement, Slice};
use crate::relay::publisher::{Producer, Publisher};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// After a failure, how long reports of what is on its way already are waited for.
const HARVEST: Duration = Duration::from_secs(2);
/// A session that has heard nothing for this share of publish_timeout is looked at: if only some partitions are
/// silent, their topics are stuck. Longer than most leaders take to change; short, since other rows of the same lanes
/// wait meanwhile.
const STUCK_SHARE: u32 = 3;
const STUCK_LOOK_EVERY: Duration = Duration::from_secs(1);
/// At most this many rows a slice: what exceeds the byte budget inside a slice is read for nothing.
const SLICE_ROWS_MAX: usize = 1_024;

/// What one cycle did.
#[derive(Debug, Default)]
pub struct Cycle {
    /// The lanes that were ours, and how far each of them was read.
    pub reach: Vec<Reach>,
    /// Rows that were read.
    pub rows: usize,
    /// Rows that are settled as sent now.
    pub sent: usize,
    /// Those of them that were not published now, since Kafka had acknowledged them before.
    pub recovered: usize,
    /// From the first row handed over to the last report.
    pub publishing: Option<Duration>,
    /// Kafka's failure that ended the session, if one did.
    pub failure: Option<Failure>,
    /// What kept suspects from being judged.
    pub unjudged: Option<Failure>,
    /// Somebody else's lock kept a row from being settled.
    pub locked_out: bool,
}

/// Runs one cycle over those of `lanes` that are free.
///
/// A fault ends the claim; what Kafka has acknowledged by then is kept in the acknowledged set. After a failure the session
/// can do nothing more, whatever is returned.
pub async fn run<O: Outbox, P: Publisher>(
    relay: &Relay<P>,
    outbox: &mut O,
    session: &mut Session<P::Producer>,
    lanes: &[Lane],
    skip_locked: bool,
) -> Result<Cycle, Fault> {
    // What is read along of a lane that turns out to be somebody else's is thrown away.
    let apart = relay.board.has_more(lanes)
        || relay.board.was_elsewhere(lanes)
        || relay.narrowing.claims_apart(lanes);
    let rows_max = if apart { relay.limits().batch_rows } else { prompt_rows(relay) };
    let rows_max = relay.narrowing.rows_max(lanes, rows_max);
    let ahead = (!apart).then(|| Ask::new(relay, lanes, rows_max));
    let mut claim = outbox.claim(lanes, ahead.as_ref().map(|ask| &ask.read)).await?;
    if claim.lanes().is_empty() {
        claim.release().await?;
        return Ok(Cycle::default());
    }
    fail_point::reach("lanes-locked").await;
    relay.marks.borrow_mut().meet(claim.server());
    let owned = claim.lanes().to_vec();
    let ask = match ahead {
        // The server is the one for which it was asked.
        Some(ask) if ask.start.epoch() == relay.marks.borrow().epoch() => ask.only(lanes, &owned),
        _ => Ask::new(relay, &owned, rows_max),
    };
    let deadline = Instant::now() + relay.limits().publish_timeout;

    session.begin(&relay.refusals);
    let mut batch = Batch::new(relay.narrowing.on_rejected(lanes, relay.limits().on_rejected));
    let mut published = publish(relay, session, &mut claim, &ask, &mut batch, deadline).await;
    if published.is_err() {
        // What was handed over before the claim was lost is on its way: hear what becomes of it. A report that came
        // later would be taken for one of the next batch.
        if stepping(relay, timeout_at(deadline, session.finish(&mut batch))).await.is_err() {
            session.close(overdue(relay));
        }
    }
    if session.failure().is_some() {
        let (_, kept) = alive(relay, &mut claim, harvest(session, &mut batch)).await;
        published = published.and_then(|version| kept.map(|()| version));
    }
    let mut unjudged = None;
    // Without the claim another relay may have these lanes: what it publishes must not meet a verdict of ours.
    if published.is_ok() && batch.has_suspects() {
        let judging = timeout_at(deadline, judge(relay, session, &mut batch));
        let (judged, kept) = alive(relay, &mut claim, judging).await;
        unjudged = judged.unwrap_or_else(|_| Some(overdue(relay)));
        published = published.and_then(|version| kept.map(|()| version));
    }
    // Reports that arrived while other rows were judged.
    session.absorb(&mut batch);
    relay.heard(session, &batch);

    let publishing = session.publishing();
    let recorded = match published {
        Ok(versions) => record(relay, claim, session, &batch, skip_locked)
            .await
            .inspect_err(|fault| relay.narrowing.settlement_failed(&owned, fault))
            .map(|settled| confirm(relay, &ask.start, versions, &owned, &batch, &settled)),
        Err(fault) => Err(fault),
    };
    let failure = session.failure().cloned();
    match recorded {
        Ok(cycle) => Ok(Cycle { publishing, failure, unjudged, ..cycle }),
        Err(fault) => {
            let mut acknowledged = relay.acknowledged.borrow_mut();
            // What it did not read where it looked, another relay has settled.
            let unsettled: Vec<&O::Event> =
                batch.rows().iter().filter(|row| acknowledged.contains(*row)).collect();
            let seen = relay.seen(batch.hold_version());
            acknowledged.forget(&batch.reach(&owned), batch.rows(), seen);
            acknowledged.keep(unsettled.into_iter().chain(batch.sent()), seen.hold_version);
            Err(fault)
        }
    }
}

/// What a claim reads, and what the marks were then.
struct Ask {
    start: Start,
    read: Read,
    /// The lanes that it was made for.
    lanes: Vec<Lane>,
    begun: Instant,
    /// It was sent along with the claim.
    sent: bool,
}

impl Ask {
    fn new<P>(relay: &Relay<P>, lanes: &[Lane], rows_max: usize) -> Ask {
        let start = relay.marks.borrow().start(lanes);
        let read = Read {
            lows: start.lows.clone(),
            basis: start.basis,
            rows_max,
            shares: relay.board.shares(lanes, rows_max),
            first_of_keys_of: Vec::new(),
        };
        Ask { start, read, lanes: lanes.to_vec(), begun: Instant::now(), sent: false }
    }

    /// It was sent for these lanes, of which only those in `owned` turned out to be ours.
    fn only(mut self, lanes: &[Lane], owned: &[Lane]) -> Ask {
        self.start = self.start.only(lanes, owned);
        let shares = lanes.iter().zip(&self.read.shares).filter(|(lane, _)| owned.contains(lane));
        self.read.shares = shares.map(|(_, rows)| *rows).collect();
        self.sent = true;
        self
    }
}

/// How many rows to read at once where no backlog is known of.
fn prompt_rows<P>(relay: &Relay<P>) -> usize {
    let limits = relay.limits();
    relay.expected_rows(limits.batch_bytes).min(limits.batch_rows).min(SLICE_ROWS_MAX)
}

/// Reads the claim slice by slice, and hands the rows to the session. Returns the versions that the read saw, when
/// every report is in or the session has closed.
async fn publish<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claim: &mut C,
    ask: &Ask,
    batch: &mut Batch<C::Event>,
    deadline: Instant,
) -> Result<Slice, Fault> {
    // One set of them for the whole batch, whatever a reload does meanwhile.
    let limits = relay.limits();
    batch.ask(&ask.read.shares);
    if relay.narrowing.looks_at_first(&ask.lanes) {
        return look_at_first(relay, claim, &ask.read, ask.start.epoch(), batch).await;
    }
    let failed = |fault: &Fault| relay.narrowing.read_failed(&ask.lanes, ask.read.rows_max, fault);
    if !ask.sent {
        claim.read(&ask.read).await.inspect_err(failed)?;
    }
    fail_point::reach("read-sent").await;
    let versions = loop {
        let bytes_left = limits.batch_bytes.saturating_sub(batch.bytes());
        let rows = relay
            .expected_rows(bytes_left)
            .min(limits.batch_rows.saturating_sub(batch.len()))
            .min(SLICE_ROWS_MAX);
        let read = claim.next_slice(rows, bytes_left, batch.rows_mut()).await;
        let from = batch.grown(read.as_ref().map_or(End::Cut, |slice| slice.end));
        let slice = read.inspect_err(|fault| {
            relay.expect_larger_rows();
            failed(fault);
        })?;
        batch.saw_holds(slice.hold_version);
        relay.saw(ask.start.epoch(), &slice, &batch.rows()[from..]);
        relay.recognise(batch, from);
        if relay.probes_any_of(&batch.rows()[from..]) {
            batch.cut();
            return Err(probed_just_now());
        }
        let full = batch.len() >= limits.batch_rows || batch.bytes() >= limits.batch_bytes;
        if slice.end == End::More && full {
            batch.cut();
        }
        if slice.end != End::More || full {
            relay.narrowing.read_took(ask.lanes.len(), ask.begun.elapsed());
            break slice;
        }
        fail_point::reach("between-slices").await;
    };
    // All of them at once: handed over slice by slice, they would go out in many small requests.
    let template = &relay.template;
    by(deadline, relay, claim, session, async |session| session.send(template, batch, 0).await).await?;
    fail_point::reach("handed-over").await;
    finish(relay, session, claim, batch, deadline).await?;
    Ok(versions)
}

fn probed_just_now() -> Fault {
    let message = "a probe of its topic has an event of this claim in flight".to_owned();
    Fault { kind: FaultKind::Contended, doing: "reading events", message }
}

/// Waits until every report is in, or the session has closed: at its first failure, at the deadline, or when a
/// partition stays silent while others are acknowledged, whose topic is held then.
async fn finish<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claim: &mut C,
    batch: &mut Batch<C::Event>,
    deadline: Instant,
) -> Result<(), Fault> {
    fail_point::reach("waiting-for-reports").await;
    // The whole wait at once: each wait for itself would begin anew to count when the claim is to be kept alive.
    alive(relay, claim, hear(relay, session, batch, deadline)).await.1
}

async fn hear<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &mut Batch<E>,
    deadline: Instant,
) {
    let begun = Instant::now();
    let patience = relay.limits().publish_timeout / STUCK_SHARE;
    let mut look_at = begun + patience;
    while look_at < deadline {
        if timeout_at(look_at, session.finish(batch)).await.is_ok() {
            return;
        }
        let silent_since = session.heard_at().unwrap_or(begun).max(begun);
        if silent_since.elapsed() < patience {
            look_at = silent_since + patience;
            continue;
        }
        // That others were acknowledged may have been just before Kafka went away altogether.
        let answers = timeout_at(deadline, relay.publisher.probe()).await;
        session.absorb(batch);
        if matches!(answers, Ok(Ok(_))) {
            let mut silent = session.silent(batch);
            silent.sort_unstable();
            if let Some(failure) = elsewhere::cut_off(relay, silent).await {
                session.absorb(batch);
                return session.close(failure);
            }
            if session.hold_stuck(batch, relay.heard_since(begun), patience) {
                return;
            }
        }
        look_at = Instant::now() + STUCK_LOOK_EVERY;
    }
    if timeout_at(deadline, session.finish(batch)).await.is_err() {
        session.close(overdue(relay));
    }
}

/// Does something with the session until `deadline` while the claim is kept alive. At the deadline the session
/// closes: what it has not acknowledged by then is unknown.
async fn by<C: Claim, P: Publisher>(
    deadline: Instant,
    relay: &Relay<P>,
    claim: &mut C,
    session: &mut Session<P::Producer>,
    work: impl AsyncFnOnce(&mut Session<P::Producer>),
) -> Result<(), Fault> {
    let (in_time, kept) = alive(relay, claim, timeout_at(deadline, work(session))).await;
    if in_time.is_err() {
        session.close(overdue(relay));
    }
    kept
}

fn overdue<P>(relay: &Relay<P>) -> Failure {
    let waited = relay.limits().publish_timeout;
    Failure::unknown(format!("Kafka has not acknowledged everything within publish_timeout ({waited:?})"))
}

/// Waits for `work` and keeps the claim alive meanwhile. If the claim is lost the work goes on all the same, for what
/// Kafka acknowledges still counts. `work` has to end by itself: waiting for it counts as steps.
pub(crate) async fn alive<C: Claim, P: Publisher, T>(
    relay: &Relay<P>,
    claim: &mut C,
    work: impl Future<Output = T>,
) -> (T, Result<(), Fault>) {
    let mut work = pin!(work);
    loop {
        let beat = async {
            sleep(relay.limits().takeover_timeout / 3).await;
            claim.keep_alive().await
        };
        let kept = tokio::select! {
            biased;
            done = &mut work => return (done, Ok(())),
            kept = beat => kept,
        };
        if kept.is_err() {
            return (stepping(relay, work).await, kept);
        }
    }
}

/// Waits for `work` without a claim to keep alive, and is woken as often as with one: a wait for Kafka may be longer than
/// the watchdog's patience. `work` has to end by itself.
async fn stepping<P, T>(relay: &Relay<P>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = timeout(relay.limits().takeover_timeout / 3, work.as_mut()).await {
            return done;
        }
    }
}

/// The session has closed: hear what becomes of the rows on their way.
async fn harvest<E: Event, P: Producer>(session: &mut Session<P>, batch: &mut Batch<E>) {
    session.absorb(batch);
    let _ = timeout(HARVEST, session.harvest()).await;
    session.absorb(batch);
}

/// Settles and commits.
async fn record<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    claim: C,
    session: &Session<P::Producer>,
    batch: &Batch<C::Event>,
    skip_locked: bool,
) -> Result<Settled, Fault> {
    let mut settlement = Settlement {
        sent: batch.sent().collect(),
        rejected: batch.dead().collect(),
        blocked: batch.blocked(skip_locked).collect(),
        held: session.held(batch),
        skip_locked,
    };
    relay.leave_holds_out(&mut settlement);
    if settlement.is_empty() {
        claim.release().await?;
        return Ok(Settled::All);
    }
    fail_point::reach("before-settlement").await;
    let settled =
        claim.settle(&settlement).await.inspect_err(|fault| relay.not_settled(&settlement, fault))?;
    fail_point::reach("committed").await;
    relay.report(&settlement);
    Ok(settled)
}

/// The COMMIT is confirmed: only now the marks rise, and the acknowledged set forgets what it covered.
fn confirm<E: Event, P: Publisher>(
    relay: &Relay<P>,
    start: &Start,
    Slice { hold_version, basis, .. }: Slice,
    owned: &[Lane],
    batch: &Batch<E>,
    settled: &Settled,
) -> Cycle {
    let reach = batch.reach(owned);
    let mut acknowledged = relay.acknowledged.borrow_mut();
    acknowledged.forget(&reach, batch.rows(), relay.seen(hold_version));
    match settled {
        Settled::All => relay.marks.borrow_mut().raise(start, basis, &reach),
        Settled::Only(recorded) => {
            acknowledged.keep(batch.sent().filter(|row| !recorded.contains(&row.id())), hold_version);
        }
        // Which ones were not is unknown: those that are read again are recognised, the others forgotten.
        Settled::Fewer => acknowledged.keep(batch.sent(), hold_version),
    }
    Cycle {
        reach,
        rows: batch.len(),
        sent: batch.sent().count(),
        recovered: batch.recovered_rows(),
        locked_out: *settled != Settled::All,
        ..Cycle::default()
    }
}
