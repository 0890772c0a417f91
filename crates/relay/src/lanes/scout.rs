//! The scout: finds lanes with work, moves the fence, and sweeps.
//!
//! It scans every millisecond while this relay works on a backlog. Once a scan has found nothing, it only looks for new ids
//! ([`Lookout`]), and scans twice a second. Otherwise the interval of the scans doubles.
//!
//! A look is one probe of the primary key, and names the lanes of the new rows. It proves nothing: a lane in which it finds
//! nothing may have rows that were reset to unsent, or that were committed with a lower id than rows of another relay. Scans
//! find those above the low-water marks, and sweeps all of them.

use crate::lanes::Width;
use crate::lanes::marks::{LOWEST, Swept, Writer};
use crate::reason::NO_ANSWER;
use crate::{
    Availability, Backoff, Epoch, FaultKind, KafkaFailure, LANES, Lane, Limits, Marks, MarksSnapshot,
    PostgresFault, Publisher, Relay, ServerId, fail_point,
};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The scout's number in outages. Workers are numbered from 1.
pub const SCOUT: usize = 0;
const POLL_FIRST: Duration = Duration::from_millis(1);
/// The longest time between two scans while the scout does not look for new rows.
const POLL_LAST: Duration = Duration::from_millis(50);
const FENCE_EVERY: Duration = Duration::from_millis(100);
/// The same while the scout only looks for new rows, which need no marks.
const FENCE_RARELY: Duration = Duration::from_millis(500);
/// Listing the locks of a server that has very many takes at most this share of the time, as its reciprocal.
const FENCE_SHARE: u32 = 20;
/// Looks take at most this share of the time, as its reciprocal. Each walks the entries of all rows of a large open transaction.
const LOOK_SHARE: u32 = 10;
/// Between looks that are further apart, the server keeps no transaction open.
const REST_ABOVE: Duration = Duration::from_millis(50);
/// Feeds the watchdog while the scout waits for a long `poll_interval`.
const BEAT_EVERY: Duration = Duration::from_secs(10);
/// How many rows of a lane a scan reads that are held, blocked or paused. If it read all, a lane with millions of them would keep the
/// scout from the others. The next scan continues at the mark, and reads twice as many if it would be quick, or if the mark could not
/// rise.
pub const HIDDEN_ROWS_MAX: usize = 10_000;
const HIDDEN_FOR: Duration = Duration::from_millis(250);
const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// A sweep walks every index entry that vacuum has not removed, so it gets about 2% of the time.
const SWEEP_SHARE: u32 = 50;
/// The longest wait for the next sweep; shorter if it covers fewer lanes. A sweep may have seemed slow because the relay was frozen.
const SWEEP_AFTER_AT_MOST: Duration = Duration::from_secs(300);
const SWEEPS_ADVICE: &str = "Events are still published, but rows that were reset to unsent may wait. If this is a timeout, \
     check with `outbox-relay status` whether vacuum keeps up";
/// A few lanes at a time, because the scout does nothing else meanwhile. All lanes take about 16 s.
const SWEEP_LANES: usize = 8;
/// After a sweep that takes longer, the next one covers fewer lanes, but at least two: only a sweep that finds rows below the marks of
/// two lanes shows at once that the ids went back.
const SWEEP_SLOW: Duration = Duration::from_millis(250);

pub trait ScoutQueries {
    /// The first unsent row above the mark of each of these lanes, if there is one among the first `rows_max`.
    async fn scan(
        &mut self,
        lanes: &[Lane],
        marks: &MarksSnapshot,
        rows_max: usize,
    ) -> Result<Scan, PostgresFault>;
    /// The transactions that hold RowExclusiveLock on the outbox or on the sequence of its ids.
    async fn writers(&mut self) -> Result<(ServerId, Vec<Writer>), PostgresFault>;
    /// Looks for the newest rows that `look` describes.
    async fn look(&mut self, look: &Look) -> Result<Looked, PostgresFault>;
    /// Keeps nothing open on the server until the next query.
    async fn rest(&mut self) -> Result<(), PostgresFault> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct Scan {
    pub server: ServerId,
    pub epoch: Epoch,
    /// Lanes with work, and the id of the first unsent row of each.
    pub first_unsent: Vec<(Lane, i64)>,
    /// Lanes of which the first rows are all held, blocked or paused, and the id of the last one that the scan read.
    pub hidden_to: Vec<(Lane, i64)>,
    /// The highest id of a row of these lanes.
    pub newest_hidden: Option<i64>,
}

impl Scan {
    fn is_empty(&self) -> bool {
        self.first_unsent.is_empty() && self.hidden_to.is_empty()
    }
}

#[derive(Clone, Debug)]
pub struct Looked {
    pub server: ServerId,
    pub hold_version: i64,
    pub epoch: Epoch,
    /// The ids of the rows, with their lanes if they are unsent.
    pub rows: Vec<(i64, Option<Lane>)>,
}

impl Looked {
    /// The maximum number of rows of each kind: those above an id, and those in gaps.
    pub const ROWS_MAX: usize = 100;
}

pub struct Scout<P, L> {
    relay: Rc<Relay<P>>,
    queries: L,
    backoff: Backoff,
    interval: Duration,
    fence_at: Instant,
    sweep_at: Instant,
    swept: usize,
    /// Where the next sweep of each lane begins.
    sweep_above: [i64; LANES],
    /// How many rows of a lane the next sweep reads.
    sweep_rows: usize,
    sweeping: Width,
    scan_order: ScanOrder,
    /// How many rows of a lane the next scan reads.
    rows_max: usize,
    lookout: Lookout,
    looked_for: Duration,
    /// The shorter time of the last two looks, because one slow look says nothing about the next.
    looks_take: Duration,
    /// A relay that drains only scans.
    drains: bool,
    sweeps: Availability,
}

impl<P: Publisher, L: ScoutQueries> Scout<P, L> {
    pub fn new(relay: Rc<Relay<P>>, queries: L, random: fastrand::Rng) -> Scout<P, L> {
        let now = Instant::now();
        Scout {
            relay,
            queries,
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(2), random),
            interval: POLL_FIRST,
            fence_at: now,
            sweep_at: now + SWEEP_EVERY,
            swept: 0,
            sweep_above: [LOWEST; LANES],
            sweep_rows: HIDDEN_ROWS_MAX,
            sweeping: Width::new(SWEEP_LANES),
            scan_order: ScanOrder::new(),
            rows_max: HIDDEN_ROWS_MAX,
            lookout: Lookout::new(),
            looked_for: Duration::ZERO,
            looks_take: Duration::ZERO,
            drains: false,
            sweeps: Availability::new("sweeps", "backlog_not_measured").described("failing", "working again"),
        }
    }

    pub async fn scout(mut self) {
        while !self.relay.lanes.board.is_stopped() {
            self.relay.stats.beat();
            self.relay.health.rejections.report_over();
            fail_point::reach("scouting").await;
            if !self.relay.kafka.gate.is_open() {
                // If this fails, so does the next query, which reports it.
                _ = self.queries.rest().await;
                _ = timeout(Duration::from_secs(1), self.relay.opened()).await;
                continue;
            }
            _ = self.attempt().await;
        }
    }

    /// Scouts until only held rows are left, PostgreSQL or Kafka stays unavailable, or the rest stays locked or unreadable. Then stops
    /// the relay.
    pub async fn drain(mut self) -> Result<(), Undrained> {
        self.drains = true;
        let mut recorded = (0, Instant::now());
        while !self.relay.lanes.board.is_stopped() {
            self.relay.stats.beat();
            let patience = self.relay.settings.limits().publish_timeout;
            let gate = &self.relay.kafka.gate;
            let opened = tokio::select! {
                biased;
                () = gate.opened() => true,
                () = self.relay.lanes.board.stopped() => break,
                () = sleep(patience) => false,
            };
            // If Kafka answers probes but acknowledges nothing, the gate opens again and again.
            if !opened || gate.kafka.failed_for().is_some_and(|time| time > patience) {
                self.relay.lanes.board.stop();
                let unknown = || NO_ANSWER.failure(format!("Kafka was unavailable for {patience:?}"));
                return Err(Undrained::Kafka(gate.reason().unwrap_or_else(unknown)));
            }
            if let Some(error) = self.relay.health.postgres.still_fails(patience) {
                self.relay.lanes.board.stop();
                let message = format!(
                    "PostgreSQL was unavailable for more than the publish_timeout of {patience:?}: {error}"
                );
                let (kind, doing) = (FaultKind::Unavailable, "publishing the backlog");
                return Err(Undrained::Postgres(PostgresFault { kind, doing, message }));
            }
            let Relay { health, lanes, stats, .. } = &*self.relay;
            if stats.published.get() != recorded.0 {
                recorded = (stats.published.get(), Instant::now());
            }
            let stuck = || {
                health.locks.still_fails(patience).or_else(|| lanes.narrowing.outage.still_fails(patience))
            };
            if recorded.1.elapsed() > patience
                && let Some(error) = stuck()
            {
                lanes.board.stop();
                return Err(Undrained::Stuck(error));
            }
            if let Err(fault) = self.attempt().await
                && fault.kind == FaultKind::Refused
            {
                return Err(Undrained::Postgres(fault));
            }
        }
        Ok(())
    }

    /// Runs a round and waits for the next one, which is later after a fault.
    async fn attempt(&mut self) -> Result<(), PostgresFault> {
        let begun = Instant::now();
        let done = match self.round().await {
            // PostgreSQL was not asked, so this does not show that it is available.
            Ok(Work::Unknown) => self.wait().await,
            Ok(work) => {
                let Relay { health, lanes, .. } = &*self.relay;
                match work {
                    Work::NoneAnywhere if self.drains => lanes.board.stop(),
                    Work::NoneAnywhere => {
                        health.postgres.needed_only_by(&[SCOUT]);
                        health.locks.needed_only_by(&[SCOUT]);
                    }
                    _ => {}
                }
                health.postgres_worked(SCOUT);
                self.backoff.reset();
                self.wait().await
            }
            Err(fault) => Err(fault),
        };
        if let Err(fault) = &done
            && !(self.drains && fault.kind == FaultKind::Refused)
        {
            self.relay.health.postgres_failed(SCOUT, begun, fault);
            sleep(self.backoff.next_wait()).await;
        }
        done
    }

    async fn round(&mut self) -> Result<Work, PostgresFault> {
        self.note_board();
        let now = Instant::now();
        let look = self.lookout.next(&self.relay.settings.limits()).filter(|_| !self.drains);
        if now >= self.fence_at {
            let every = if look.is_some() { FENCE_RARELY } else { FENCE_EVERY };
            self.fence_at = now + every;
            if self.step_fence().await? {
                self.relay.health.postgres_worked(SCOUT);
            }
            self.fence_at = now + every.max(now.elapsed() * FENCE_SHARE);
            self.relay.stats.beat();
        }
        if now >= self.sweep_at {
            match self.sweep().await {
                Err(fault) if fault.kind == FaultKind::Unavailable => return Err(fault),
                Err(fault) => self.sweeps.failed(SCOUT, &fault, SWEEPS_ADVICE),
                Ok(()) => {
                    self.sweeps.worked(SCOUT);
                    self.relay.health.postgres_worked(SCOUT);
                }
            }
            self.relay.stats.beat();
        }
        match look {
            Some((look, _)) => self.look(&look).await,
            None => self.scan().await,
        }
    }

    async fn look(&mut self, look: &Look) -> Result<Work, PostgresFault> {
        if self.relay.lanes.board.all_taken() {
            return Ok(Work::Unknown);
        }
        let generation = self.relay.lanes.marks.borrow().generation;
        let begun = Instant::now();
        let looked = self.queries.look(look).await?;
        self.looks_take = self.looked_for.min(begun.elapsed());
        self.looked_for = begun.elapsed();
        let Some(lanes) = self.new_lanes(look, generation, &looked) else { return self.scan().await };
        self.relay.lanes.board.add_new(lanes);
        Ok(Work::Possible)
    }

    /// The lanes of the new rows that a look has found. `None` if only a scan knows which lanes have work: rows may wait for a
    /// hold, or be older than those that a look returns at most.
    fn new_lanes(&mut self, look: &Look, generation: u64, looked: &Looked) -> Option<Vec<Lane>> {
        let mut marks = self.relay.lanes.marks.borrow_mut();
        marks.note_server(looked.server);
        if marks.generation != generation {
            self.lookout.forget();
            return None;
        }
        let ids: Vec<i64> = looked.rows.iter().map(|(id, _)| *id).collect();
        let unseen = marks.unseen(&ids);
        // A flow also sees the rows of lanes that it does not have. If no worker has the lane, nothing else finds them soon.
        let is_free = |lane: &Option<Lane>| lane.is_some_and(|lane| !self.relay.lanes.board.is_taken(lane));
        let is_new = |(id, lane): &&(i64, Option<Lane>)| unseen.contains(id) || is_free(lane);
        let new: Vec<&(i64, Option<Lane>)> = looked.rows.iter().filter(is_new).collect();
        if !self.lookout.looked(look, looked.epoch, &ids) || new.is_empty() {
            return Some(Vec::new());
        }
        let is_certain = looked.rows.len() < Looked::ROWS_MAX
            && self.relay.memory.holds_seen(looked.hold_version).nothing_held;
        if !is_certain {
            return None;
        }
        let unsent: Vec<(i64, Lane)> = new.iter().filter_map(|(id, lane)| Some((*id, (*lane)?))).collect();
        marks.note_seen(generation, &unseen);
        marks.note_ids(generation, unsent.iter().map(|(id, _)| *id));
        Some(unsent.into_iter().map(|(_, lane)| lane).collect())
    }

    /// Scans the lanes that are neither on the board nor with a worker.
    async fn scan(&mut self) -> Result<Work, PostgresFault> {
        let unknown = self.relay.lanes.board.lanes_to_scan();
        let all_unknown = unknown.len();
        let lanes = self.scan_order.next_lanes(unknown);
        let (all_free, covers_all) = (all_unknown == LANES, lanes.len() == all_unknown);
        if lanes.is_empty() {
            return Ok(Work::Unknown);
        }
        let snapshot = self.relay.lanes.marks.borrow().snapshot(&lanes);
        self.lookout.scans(&mut self.relay.lanes.marks.borrow_mut());
        self.looks_take = Duration::ZERO; // the next look may be fast again
        let begun = Instant::now();
        let scan = match self.queries.scan(&lanes, &snapshot, self.rows_max).await {
            Err(fault) if fault.kind == FaultKind::TimedOut => {
                self.rows_max = fewer(self.rows_max);
                if !self.scan_order.timed_out(&lanes) {
                    return Err(fault);
                }
                tracing::debug!("{fault}; scanning fewer lanes next time");
                return Ok(Work::Possible);
            }
            scan => scan?,
        };
        self.scan_order.width.worked(lanes.len(), begun.elapsed());
        self.relay.stats.scans.inc();
        self.relay.stats.scans_empty.inc_by(scan.is_empty().into());
        self.relay.lanes.marks.borrow_mut().note_server(scan.server);
        let continues = self.relay.lanes.marks.borrow_mut().scanned(&snapshot, &lanes, &scan);
        if scan.hidden_to.is_empty() {
            self.relay.lanes.narrowing.scanned(&lanes, &scan.first_unsent);
            let is_passed = Lane::all().all(|lane| self.relay.lanes.marks.borrow().may_claim(lane));
            self.rows_max = if is_passed { fewer(self.rows_max) } else { self.rows_max };
        } else if !continues || begun.elapsed() < HIDDEN_FOR {
            self.rows_max = self.rows_max.saturating_mul(2);
        } else {
            self.rows_max = fewer(self.rows_max);
        }
        self.relay.lanes.board.add(scan.first_unsent.iter().map(|(lane, _)| *lane));
        // A claim finds out whether the settlement of these rows was recorded. Until then, an operator's replay of them
        // would be mistaken for rows that are already acknowledged.
        let (acknowledged, marks) =
            (self.relay.memory.acknowledged.borrow(), self.relay.lanes.marks.borrow());
        let may_claim = |lane: &Lane| lanes.contains(lane) && marks.may_claim(*lane);
        self.relay.lanes.board.add(acknowledged.lanes().filter(may_claim));
        drop((acknowledged, marks));
        let same_server = snapshot.generation == self.relay.lanes.marks.borrow().generation;
        if !same_server {
            self.lookout.forget();
        } else if scan.is_empty() && covers_all && self.relay.lanes.board.none_waits() {
            self.lookout.found_nothing(scan.epoch);
        }
        if !(all_free && same_server && scan.is_empty()) {
            self.scan_order.forget_empty();
            return Ok(Work::Possible);
        }
        Ok(if self.scan_order.note_empty(&lanes) { Work::NoneAnywhere } else { Work::Possible })
    }

    /// Scans a few lanes below their marks, for rows that were reset to unsent (`sent_at = NULL`, a restored table) or
    /// inserted there after the sequence was restarted or one very large id was inserted.
    async fn sweep(&mut self) -> Result<(), PostgresFault> {
        let lanes: Vec<Lane> = Lane::all().skip(self.swept).take(self.sweeping.get()).collect();
        let begun = Instant::now();
        // The marks before the scan, because those of its rows may be raised before its answer arrives.
        let sent = self.relay.lanes.marks.borrow().snapshot(&lanes);
        let mut from_lowest = sent.clone();
        from_lowest.lows = lanes.iter().map(|lane| self.sweep_above[lane.index()]).collect();
        let scan = self.queries.scan(&lanes, &from_lowest, self.sweep_rows).await;
        let most = SWEEP_AFTER_AT_MOST * lanes.len() as u32 / SWEEP_LANES as u32;
        self.sweep_at = after(&scan, begun, SWEEP_EVERY).min(Instant::now() + most);
        let timed_out = matches!(&scan, Err(fault) if fault.kind == FaultKind::TimedOut);
        if timed_out {
            self.sweep_rows = fewer(self.sweep_rows);
        }
        if timed_out && self.sweeping.timed_out(lanes.len()) {
            return Ok(()); // the same lanes again, in smaller parts
        }
        self.swept = (self.swept + lanes.len()) % LANES;
        let scan = scan?;
        for (lane, low) in lanes.iter().zip(&sent.lows) {
            let hidden_to = scan.hidden_to.iter().find(|(its, id)| its == lane && id < low);
            self.sweep_above[lane.index()] = hidden_to.map_or(LOWEST, |(_, id)| *id);
        }
        self.sweep_rows = match begun.elapsed() > SWEEP_SLOW {
            true => fewer(self.sweep_rows),
            false if scan.hidden_to.is_empty() => self.sweep_rows,
            false => self.sweep_rows.saturating_mul(2),
        };
        match begun.elapsed() > SWEEP_SLOW {
            true if lanes.len() > 2 => _ = self.sweeping.timed_out(lanes.len()),
            true => {}
            false => self.sweeping.worked(lanes.len(), begun.elapsed()),
        }
        let mut marks = self.relay.lanes.marks.borrow_mut();
        marks.note_server(scan.server);
        // Rows whose hold has just ended may also be below the marks. The next claim discards the marks anyway.
        let is_outdated = marks.epoch != scan.epoch;
        match marks.swept(&lanes, &sent, &scan.first_unsent) {
            Swept::Clean => {}
            Swept::Reset => tracing::debug!("unsent event found below the low-water mark of a lane"),
            Swept::Forgotten if is_outdated => {
                tracing::debug!(
                    "a hold, block or pause ended during a sweep, reading all lanes from the smallest ID again"
                );
            }
            Swept::Forgotten => tracing::info!(
                code = "marks_reset",
                "unsent events found below the low-water marks, reading all lanes from the smallest ID again"
            ),
        }
        Ok(())
    }

    /// Begins a fence, or checks whether the current one has passed. Returns whether it asked Postgres.
    async fn step_fence(&mut self) -> Result<bool, PostgresFault> {
        let (generation, high) = {
            let marks = self.relay.lanes.marks.borrow();
            if !marks.fence.is_pending() && marks.highest_read <= marks.fence.passed {
                self.relay.stats.oldest_writer_seconds.set(0.0);
                return Ok(false);
            }
            (marks.generation, marks.highest_read)
        };
        let (server, writers) = self.queries.writers().await?;
        let mut marks = self.relay.lanes.marks.borrow_mut();
        marks.note_server(server);
        if marks.generation == generation {
            marks.list_writers(high, writers);
        }
        self.relay.stats.oldest_writer_seconds.set(marks.fence.waits_for().as_secs_f64());
        Ok(true)
    }

    /// Notes what workers have found out about lanes.
    fn note_board(&mut self) {
        if self.relay.lanes.board.lost.take() {
            self.lookout.yields();
        }
        if self.relay.lanes.board.doubt.take() {
            self.lookout.doubts();
        }
        // Flows and claims of a backlog find rows without a look.
        let found_at = self.lookout.found_at;
        self.lookout.found_at =
            self.relay.lanes.board.arrived_at.get().map_or(found_at, |at| at.max(found_at));
    }

    async fn wait(&mut self) -> Result<(), PostgresFault> {
        let all_taken = self.relay.lanes.board.all_taken();
        let progress = self.relay.lanes.board.progress.take();
        self.note_board();
        let look = self.lookout.next(&self.relay.settings.limits()).filter(|_| !self.drains);
        self.interval = if progress || all_taken || look.is_some() {
            POLL_FIRST
        } else {
            (self.interval * 2).min(POLL_LAST)
        };
        let look_every = look.map(|(_, every)| every.max((self.looks_take * LOOK_SHARE).min(SCAN_EVERY)));
        let pause = look_every.unwrap_or(self.interval);
        let begun = Instant::now();
        let waits_for_worker = all_taken || !self.relay.lanes.board.has_free_worker();
        if waits_for_worker || look_every.is_none_or(|every| every > REST_ABOVE) {
            self.queries.rest().await?;
        }
        // While every worker is busy, or a flow has all lanes, there is no need to scan, but the fence continues.
        tokio::select! {
            biased;
            () = async {
                self.relay.lanes.board.worker_and_lane_free().await;
                sleep_until(begun + pause).await;
            } => {}
            () = sleep(FENCE_EVERY), if waits_for_worker => {}
            () = self.relay.lanes.board.doubted.notified(), if look_every.is_some() => {}
            () = self.relay.lanes.board.stopped() => {}
            () = self.beat() => {}
        }
        Ok(())
    }

    async fn beat(&self) {
        loop {
            sleep(BEAT_EVERY).await;
            self.relay.stats.beat();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// No lane was scanned: each is on the board, with a worker, or set aside.
    Unknown,
    Possible,
    NoneAnywhere,
}

/// When to repeat a slow query that began then: after `every` or later, so that it takes only its share of the time. The time
/// of a failed connection does not count.
pub fn after<T>(answer: &Result<T, PostgresFault>, begun: Instant, every: Duration) -> Instant {
    if matches!(answer, Err(fault) if fault.kind == FaultKind::Unavailable) {
        return Instant::now() + every;
    }
    Instant::now() + (begun.elapsed() * SWEEP_SHARE).clamp(every, SWEEP_AFTER_AT_MOST)
}

/// Half as many hidden rows for the next scan or sweep.
fn fewer(rows: usize) -> usize {
    (rows / 2).max(HIDDEN_ROWS_MAX)
}

/// Which lanes the scout scans next. If one statement cannot cover all, they take turns.
struct ScanOrder {
    width: Width,
    next: usize,
    /// Lanes found empty since the last scan that found rows.
    empty: [bool; LANES],
}

impl ScanOrder {
    fn new() -> ScanOrder {
        ScanOrder { width: Width::new(LANES), next: 0, empty: [false; LANES] }
    }

    /// Those of these lanes that the next scan covers.
    fn next_lanes(&mut self, mut lanes: Vec<Lane>) -> Vec<Lane> {
        if lanes.len() > self.width.get() {
            let first = lanes.iter().position(|lane| lane.index() >= self.next).unwrap_or(0);
            lanes.rotate_left(first);
            lanes.truncate(self.width.get());
            self.next = lanes.last().map_or(0, |lane| (lane.index() + 1) % LANES);
        }
        lanes
    }

    /// Records that a scan of these lanes timed out. Returns whether the next one covers fewer, beginning with the same ones.
    fn timed_out(&mut self, lanes: &[Lane]) -> bool {
        let narrower = self.width.timed_out(lanes.len());
        if narrower {
            self.next = lanes.first().map_or(0, |lane| lane.index());
        }
        narrower
    }

    /// Records that a scan found rows, or that a lane was not free.
    fn forget_empty(&mut self) {
        self.empty = [false; LANES];
    }

    /// Records that a scan found these lanes empty. Returns whether all 64 are.
    fn note_empty(&mut self, lanes: &[Lane]) -> bool {
        for lane in lanes {
            self.empty[lane.index()] = true;
        }
        let everywhere = self.empty.iter().all(|empty| *empty);
        if everywhere {
            self.forget_empty();
        }
        everywhere
    }
}

/// The longest time without a scan while rows arrive.
pub(crate) const SCAN_EVERY: Duration = Duration::from_millis(500);
/// After this time without a new row, the scout looks every `poll_interval`.
const ARRIVING_FOR: Duration = Duration::from_secs(10);
/// The maximum number of gaps to look into. Each is one index probe per look.
const LOOK_GAPS_MAX: usize = 100;
/// How long the scout only scans after another relay had locked the lanes of new rows: that relay publishes what arrives.
const YIELDS_FOR: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Rows with a greater id. If this is `None`, only the highest id is wanted.
    pub above: Option<i64>,
    pub gaps: Vec<i64>,
}

/// Why a relay stopped draining although rows may be left.
#[derive(Debug)]
pub enum Undrained {
    Postgres(PostgresFault),
    Kafka(KafkaFailure),
    /// Nothing was recorded as sent for the `publish_timeout`, because rows are locked or unreadable.
    Stuck(String),
}

/// Decides whether the scout looks for new rows or has to scan.
pub(crate) struct Lookout {
    /// The highest id and the gaps that were known before the last scan, or that a look has returned since. A new row has a
    /// greater id, or is in a gap.
    known: Option<Look>,
    /// The generation of the marks when this was noted. In another one, the same ids may be issued again.
    generation: u64,
    /// The epoch of the last scan, if since then every unsent row is with a worker or will be found by a look.
    epoch: Option<Epoch>,
    scanned_at: Instant,
    found_at: Instant,
    not_before: Option<Instant>,
}

impl Lookout {
    pub(crate) fn new() -> Lookout {
        let now = Instant::now();
        Lookout { known: None, generation: 0, epoch: None, scanned_at: now, found_at: now, not_before: None }
    }

    /// Notes what is known before a scan is sent, because rows may be committed during it.
    pub(crate) fn scans(&mut self, marks: &mut Marks) {
        let is_same = std::mem::replace(&mut self.generation, marks.generation) == marks.generation;
        let before = self.known.take().filter(|_| is_same).and_then(|known| known.above);
        let seen = marks.search();
        let highest = before.max(seen.as_ref().map(|seen| seen.highest));
        // If another relay has read higher ids, this one does not know their gaps.
        let knows_gaps = seen.as_ref().is_some_and(|seen| Some(seen.highest) >= highest);
        let gaps =
            seen.filter(|_| knows_gaps).map(|seen| seen.gaps()).filter(|gaps| gaps.len() <= LOOK_GAPS_MAX);
        // The rows of an excepted transaction are not in the gaps. Only a scan notices that it has ended.
        let excepts = !marks.fence.excepted().xids.is_empty();
        self.known = (!excepts).then(|| Look { above: highest, gaps: gaps.unwrap_or_default() });
        (self.epoch, self.scanned_at) = (None, Instant::now());
    }

    /// The scan has found nothing in all lanes that no worker has.
    pub(crate) fn found_nothing(&mut self, epoch: Epoch) {
        self.epoch = Some(epoch);
    }

    /// Rows may wait in a lane although no look will find them, so the scout scans until a scan finds nothing.
    pub(crate) fn doubts(&mut self) {
        self.epoch = None;
    }

    /// The ids that are known may be issued again.
    pub(crate) fn forget(&mut self) {
        (self.known, self.epoch) = (None, None);
    }

    /// Another relay had locked the lanes of new rows.
    pub(crate) fn yields(&mut self) {
        self.epoch = None;
        self.not_before = Some(Instant::now() + YIELDS_FOR);
    }

    /// What to look for, and when. `None` if the scout has to scan.
    pub(crate) fn next(&self, limits: &Limits) -> Option<(Look, Duration)> {
        let Limits { poll_interval, look_every, .. } = *limits;
        let now = Instant::now();
        let yields = self.not_before.is_some_and(|at| at > now);
        let arriving = self.found_at.elapsed() < ARRIVING_FOR;
        let scan_every = if arriving { SCAN_EVERY } else { SCAN_EVERY.max(poll_interval) };
        if yields || self.epoch.is_none() || self.scanned_at + scan_every <= now {
            return None;
        }
        let look = self.known.clone()?;
        let every = if arriving { poll_interval.min(look_every) } else { poll_interval };
        Some((look, every))
    }

    /// Notes the ids that a look has returned, and the epoch in its snapshot. Returns whether they are new, and the scout need
    /// not scan.
    pub(crate) fn looked(&mut self, look: &Look, epoch: Epoch, ids: &[i64]) -> bool {
        if self.epoch != Some(epoch) {
            self.epoch = None;
            return false;
        }
        let Some(Look { above, gaps }) = self.known.as_mut() else { return false };
        let before = above.unwrap_or(i64::MIN);
        let newest = ids.iter().copied().fold(before, i64::max);
        *above = Some(newest);
        gaps.retain(|gap| !ids.contains(gap));
        if look.above.is_none() || ids.is_empty() {
            return false;
        }
        // Ids below the newest one may be committed later.
        if newest.saturating_sub(before) <= (LOOK_GAPS_MAX + ids.len()) as i64 {
            gaps.extend((before..newest).skip(1).filter(|id| !ids.contains(id)));
            gaps.truncate(LOOK_GAPS_MAX);
        }
        self.found_at = Instant::now();
        true
    }
}

#[cfg(test)]
mod tests;
