//! The low-water marks. No row of a lane up to its mark is unsent, except rows that are held, blocked or paused. The claim
//! therefore does not walk index entries of sent rows that vacuum cannot remove yet.
//!
//! A mark is raised in four steps. None may be left out or reordered (ARCHITECTURE.md, "Low-water mark"):
//!
//! 1. Note H, the highest id of an unsent row that a read returned. Then list the transactions that hold RowExclusiveLock
//!    on the outbox or on the sequence of the ids. A writer takes it before it draws an id, and keeps it until its transaction ends.
//! 2. All of them have ended ([`Fence`]), so no new row with an id <= H can appear. A transaction that stays open is *excepted*: the
//!    fence passes without it. Its ids are greater than the fence before it. Each read then checks in its own snapshot that it is
//!    still in progress, and otherwise begins below its rows.
//! 3. Only then is a read sent ([`Marks::snapshot`]).
//! 4. Its rows are settled and the COMMIT is confirmed ([`Marks::raise`]). A scan has nothing to settle.
//!
//! [`SeenIds`] has the ids that reads have seen committed, and the gaps between them, which a flow still has to search for. Ids
//! come from one sequence for all lanes, so a committed row of any lane fills its gap. An id stays a gap while its transaction is
//! open, and also after it was rolled back. The fence removes it: no transaction can commit an id up to the fence any more.

use crate::lanes::scout::Scan;
use crate::{Coverage, Epoch, LANES, Lane, ServerId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;

/// Where a lane without a mark is read from.
pub(crate) const LOWEST: i64 = i64::MIN;

/// How many backends behind a pooler are remembered. If there are more, they and the marks are forgotten.
const SERVERS_MAX: usize = 1_000;

/// If sweeps find rows below the marks twice within this time, with ascending ids, new rows get lower ids than before.
const RESETS_WITHIN: Duration = Duration::from_secs(3600);

/// The marks of all lanes. They are in memory only.
pub struct Marks {
    /// Changes with every [`Marks::forget`]. Results of reads from an older generation are ignored.
    pub generation: u64,
    servers: HashSet<ServerId>,
    pub(super) epoch: Epoch,
    low: [i64; LANES],
    hidden: [Hidden; LANES],
    resets: [u32; LANES],
    /// When a sweep last found a row below the mark of a lane, and its id.
    last_reset: Option<(Instant, i64)>,
    /// The highest id of the unsent rows that reads returned: the H of the next fence.
    pub(crate) highest_read: i64,
    /// The ids of all rows that reads saw, for flows.
    seen: SeenIds,
    pub(crate) fence: Fence,
}

/// The rows at the beginning of a lane that are held, blocked or paused, if they are more than a scan reads at once.
#[derive(Clone, Copy)]
struct Hidden {
    /// Scans from the smallest id, each continuing the one before it, have read only such rows up to this id.
    to: i64,
    /// Set until a scan has passed them: when `to` last rose.
    since: Option<Instant>,
}

impl Default for Hidden {
    fn default() -> Hidden {
        Hidden { to: LOWEST, since: None }
    }
}

/// After this time without progress, scans read more and more rows at once, until one passes the hidden rows. The marks may be
/// discarded again and again before scans have passed them in parts.
const HIDDEN_AT_MOST: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swept {
    Clean,
    /// One lane is read from the smallest id again.
    Reset,
    /// All lanes are read from the smallest id again, and H and the fence are forgotten.
    Forgotten,
}

/// The marks and the fence when a read was sent. The result of the read is valid only for them.
#[derive(Clone, Debug)]
pub struct MarksSnapshot {
    pub generation: u64,
    /// The fence that had passed when the read was sent.
    pub(crate) fenced: i64,
    resets: [u32; LANES],
    /// One per lane, in the order of the request.
    pub lows: Vec<i64>,
    pub epoch: Epoch,
    /// The transactions whose rows may be below `lows`, but only once they have ended.
    pub excepted: Excepted,
}

impl Marks {
    pub fn new() -> Marks {
        Marks::with_gaps_max(FLOW_GAPS_MAX)
    }

    /// No marks. Flows search for at most this many gaps.
    pub fn with_gaps_max(gaps_max: usize) -> Marks {
        Marks {
            generation: 0,
            servers: HashSet::new(),
            epoch: Epoch::NONE,
            low: [LOWEST; LANES],
            hidden: [Hidden::default(); LANES],
            resets: [0; LANES],
            last_reset: None,
            highest_read: LOWEST,
            seen: SeenIds::new(gaps_max),
            fence: Fence::new(),
        }
    }

    /// Forgets everything except the known servers, because ids may be issued again.
    fn forget(&mut self) {
        let (generation, servers) = (self.generation + 1, std::mem::take(&mut self.servers));
        *self = Marks { generation, servers, ..Marks::with_gaps_max(self.seen.gaps_max) };
    }

    /// Forgets all marks if this server, or this backend behind a pooler, is new: the server may have lost commits and issue
    /// their ids again.
    pub fn note_server(&mut self, server: ServerId) {
        if self.servers.contains(&server) {
            return;
        }
        self.servers.retain(|known| known.started_us == server.started_us);
        if self.servers.len() >= SERVERS_MAX {
            self.servers.clear();
        }
        self.servers.insert(server);
        // The same rows are probably still hidden. Otherwise the next scan finds out.
        let hidden = self.hidden;
        self.forget();
        self.hidden = hidden;
    }

    pub fn snapshot(&self, lanes: &[Lane]) -> MarksSnapshot {
        MarksSnapshot {
            generation: self.generation,
            fenced: self.fence.passed,
            resets: self.resets,
            lows: lanes.iter().map(|lane| self.low[lane.index()]).collect(),
            epoch: self.epoch,
            excepted: self.fence.excepted(),
        }
    }

    /// Notes the epoch in the snapshot of a read of `generation`. A change invalidates every mark, because marks may be above rows
    /// of held topics, which can be read again when a hold has ended. (A new hold does not change the epoch.) If the table
    /// has another file, ids may start again, so H and the fence are forgotten as well.
    pub fn note_epoch(&mut self, generation: u64, epoch: Epoch) {
        if generation != self.generation || epoch == self.epoch {
            return;
        }
        if self.epoch != Epoch::NONE && epoch.table_file != self.epoch.table_file {
            self.forget();
        }
        self.epoch = epoch;
        self.low = [LOWEST; LANES];
    }

    /// Notes the ids of unsent rows that a read of `generation` returned.
    pub fn note_ids(&mut self, generation: u64, ids: impl IntoIterator<Item = i64> + Clone) {
        if generation == self.generation {
            self.highest_read = ids.clone().into_iter().fold(self.highest_read, i64::max);
            self.seen.add(ids);
        }
    }

    /// Notes what a scan found: the first unsent row of each lane. It proves the same as a claim that has settled every row before it.
    /// Returns false if no mark rose, and the scan read no further than one before it. Then the next one has to read more rows.
    pub(crate) fn scanned(&mut self, snapshot: &MarksSnapshot, lanes: &[Lane], scan: &Scan) -> bool {
        let of_lane =
            |rows: &[(Lane, i64)], lane: Lane| rows.iter().find(|(its, _)| *its == lane).map(|(_, id)| *id);
        if snapshot.generation == self.generation {
            self.note_epoch(snapshot.generation, scan.epoch);
            // The fence then passes all hidden rows at once. If H were only the last row read, each part would be read twice.
            let ids = scan.first_unsent.iter().map(|(_, id)| *id).chain(scan.newest_hidden);
            self.highest_read = ids.fold(self.highest_read, i64::max);
            let coverage = |lane: &Lane| {
                let (first_open, last_read) =
                    (of_lane(&scan.first_unsent, *lane), of_lane(&scan.hidden_to, *lane));
                Coverage { lane: *lane, last_read, first_open, cut: last_read.is_some(), used_share: false }
            };
            self.raise(snapshot, scan.epoch, &lanes.iter().map(coverage).collect::<Vec<_>>());
        }
        let mut continues = scan.hidden_to.is_empty();
        for (lane, low) in lanes.iter().zip(&snapshot.lows) {
            let low = if snapshot.epoch == scan.epoch { *low } else { LOWEST };
            let hidden = &mut self.hidden[lane.index()];
            match of_lane(&scan.hidden_to, *lane) {
                Some(id) if id > hidden.to => {
                    *hidden = Hidden { to: id, since: Some(Instant::now()) };
                    continues = true;
                }
                Some(_) => {
                    let since = hidden.since.get_or_insert_with(Instant::now);
                    continues |= self.low[lane.index()] > low && since.elapsed() < HIDDEN_AT_MOST;
                }
                None if low == LOWEST => *hidden = Hidden::default(),
                None if snapshot.generation == self.generation => hidden.since = None,
                None => {}
            }
        }
        continues
    }

    /// Whether a claim may read the lane. Otherwise it might walk millions of rows that are held, blocked or paused, before it found
    /// another one: a scan has to walk them in parts, so that the mark rises.
    pub(crate) fn may_claim(&self, lane: Lane) -> bool {
        self.hidden[lane.index()].since.is_none()
    }

    /// Whether the mark of the lane is above the hidden rows that scans have found from the smallest id on.
    pub(crate) fn is_above_hidden(&self, lane: Lane) -> bool {
        self.low[lane.index()] >= self.hidden[lane.index()].to
    }

    /// Records that a read of these lanes took too long, perhaps because it walked hidden rows.
    pub(crate) fn read_timed_out(&mut self, lanes: &[Lane]) {
        for lane in lanes {
            if !self.is_above_hidden(*lane) {
                self.hidden[lane.index()].since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Notes the ids of rows of any lane, sent or not, that a flow of `generation` saw. They do not change H: otherwise one very
    /// large id of a sent row would raise all marks above the ids that are drawn now.
    pub(crate) fn note_seen(&mut self, generation: u64, ids: &[i64]) {
        if generation == self.generation {
            self.seen.add(ids.iter().copied());
        }
    }

    /// Those of these ids that no read has returned yet.
    pub(crate) fn unseen(&self, ids: &[i64]) -> Vec<i64> {
        ids.iter().copied().filter(|id| !self.seen.has(*id)).collect()
    }

    /// The search of a flow whose first read is about to be sent. `None` if it is unknown which earlier ids were read.
    pub(crate) fn search(&mut self) -> Option<SeenIds> {
        self.seen.pass(self.fence.passed).then(|| self.seen.clone())
    }

    /// Passes a list of the writers to the fence. `high` is H, as noted before they were listed.
    pub fn list_writers(&mut self, high: i64, writers: Vec<Writer>) {
        if let Some(below_rows) = self.fence.list(high, writers) {
            for lane in 0..LANES {
                self.low[lane] = self.low[lane].min(below_rows);
                // Reads that were sent before raise nothing: their snapshots may not contain the rows.
                self.resets[lane] += 1;
            }
        }
    }

    /// Compares the first unsent row of each of these lanes, as found by a sweep, with their marks when the sweep was sent, or
    /// with the current marks if they are lower. Marks that were raised meanwhile may be above rows that are sent by now. A
    /// row below the mark of its lane was reset to unsent, so the lane is read from the smallest id again. Several such
    /// lanes, or another row with a higher id within an hour, mean that ids went backwards: the sequence was restarted, or one id was very
    /// large. H is then far above the ids that are drawn now, and the marks would rise above them again, so everything is
    /// forgotten.
    ///
    /// Above the floor, the row may also belong to a transaction that was excepted and has ended, so the mark is only lowered.
    pub(crate) fn swept(
        &mut self,
        lanes: &[Lane],
        snapshot: &MarksSnapshot,
        first_unsent: &[(Lane, i64)],
    ) -> Swept {
        let hidden = |(lane, low): (&Lane, &i64)| {
            let first = first_unsent.iter().find(|(its, _)| its == lane)?;
            (first.1 <= *low && first.1 <= self.low(*lane)).then_some(*first)
        };
        let hidden: Vec<(Lane, i64)> = lanes.iter().zip(&snapshot.lows).filter_map(hidden).collect();
        let floor = snapshot.excepted.floor.min(self.fence.excepted().floor);
        let (below, above): (Vec<_>, Vec<_>) = hidden.into_iter().partition(|(_, id)| *id <= floor);
        for (lane, id) in above {
            self.low[lane.index()] = id - 1;
            self.resets[lane.index()] += 1;
        }
        let Some((lane, id)) = below.first().copied() else { return Swept::Clean };
        let last = self.last_reset.replace((Instant::now(), id));
        let ascends = last.is_some_and(|(at, before)| at.elapsed() < RESETS_WITHIN && id > before);
        if ascends || below.len() > 1 {
            self.forget();
            return Swept::Forgotten;
        }
        self.low[lane.index()] = LOWEST;
        self.resets[lane.index()] += 1;
        Swept::Reset
    }

    pub(crate) fn low(&self, lane: Lane) -> i64 {
        self.low[lane.index()]
    }

    /// Raises the marks after a confirmed COMMIT that recorded every row except those that `coverage` names as open. `epoch` is
    /// that of the read's snapshot.
    pub fn raise(&mut self, snapshot: &MarksSnapshot, epoch: Epoch, coverage: &[Coverage]) {
        if snapshot.generation != self.generation || epoch != self.epoch {
            return;
        }
        for coverage in coverage {
            let lane = coverage.lane.index();
            let Some(covers_to) = coverage.covers_to() else { continue };
            if self.resets[lane] == snapshot.resets[lane] {
                let before_first_open = coverage.first_open.map_or(i64::MAX, |id| id - 1);
                let raised = snapshot.fenced.min(covers_to).min(before_first_open);
                self.low[lane] = self.low[lane].max(raised);
            }
        }
    }
}

impl Default for Marks {
    fn default() -> Self {
        Marks::new()
    }
}

/// How long the fence waits for a transaction before it passes without it.
const EXCEPTED_AFTER: Duration = Duration::from_secs(1);
/// The maximum number of excepted transactions. Each read checks all of them. If there are more, the fence waits.
const EXCEPTED_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    pub name: String,
    /// Its transaction id, if it has one yet. It has one when it has inserted a row.
    pub xid: Option<i64>,
}

/// The excepted transactions when a read is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excepted {
    pub xids: Vec<i64>,
    /// Their rows have greater ids.
    pub floor: i64,
    /// Changes when one of them has ended.
    pub(crate) ended: u64,
}

impl Excepted {
    pub fn none() -> Excepted {
        Excepted { xids: Vec::new(), floor: i64::MAX, ended: 0 }
    }
}

#[derive(Clone, Copy)]
struct Exception {
    /// The rows of the transaction have greater ids.
    below: i64,
    /// When it was first listed.
    since: Instant,
    /// The last list did not contain it.
    missed: bool,
}

/// One fence at a time. It begins with a list of the lock's holders and passes when all of them have ended or are excepted.
pub struct Fence {
    /// No transaction except the excepted ones can commit new rows up to this id.
    pub(crate) passed: i64,
    excepted: BTreeMap<i64, Exception>,
    /// How many times excepted transactions have ended.
    ended: u64,
    high: i64,
    pending: HashMap<String, Option<i64>>,
    begun: Instant,
}

impl Fence {
    pub(crate) fn new() -> Fence {
        Fence {
            passed: i64::MIN,
            excepted: BTreeMap::new(),
            ended: 0,
            high: i64::MIN,
            pending: HashMap::new(),
            begun: Instant::now(),
        }
    }

    pub(crate) fn excepted(&self) -> Excepted {
        Excepted {
            xids: self.excepted.keys().copied().collect(),
            floor: self.excepted.values().map(|exception| exception.below).min().unwrap_or(i64::MAX),
            ended: self.ended,
        }
    }

    /// Whether a transaction of the list, or an excepted one, is still open.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty() || !self.excepted.is_empty()
    }

    /// How long the oldest transaction that is still open has been on the list.
    pub(crate) fn waits_for(&self) -> Duration {
        let listed = (!self.pending.is_empty()).then_some(self.begun);
        let since = self.excepted.values().map(|exception| exception.since).chain(listed).min();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Handles a list of the current holders of the lock. `high` must have been noted before they were listed. If excepted
    /// transactions have ended, returns an id below their rows, which may be below the marks.
    #[must_use]
    pub fn list(&mut self, high: i64, holders: Vec<Writer>) -> Option<i64> {
        let open: BTreeSet<i64> = holders.iter().filter_map(|holder| holder.xid).collect();
        let mut below_rows: Option<i64> = None;
        self.excepted.retain(|xid, its| {
            // While PREPARE TRANSACTION moves its locks, one list may lack its transaction id. Reads check by themselves whether
            // it has ended, so a later list is early enough.
            let has_ended = !open.contains(xid) && its.missed;
            its.missed = !open.contains(xid);
            if has_ended {
                below_rows = Some(below_rows.map_or(its.below, |below| below.min(its.below)));
            }
            !has_ended
        });
        self.ended += u64::from(below_rows.is_some());
        let is_excepted = |holder: &Writer| holder.xid.is_some_and(|xid| self.excepted.contains_key(&xid));
        let holders: Vec<Writer> = holders.into_iter().filter(|holder| !is_excepted(holder)).collect();
        if self.pending.is_empty() {
            (self.high, self.begun) = (high, Instant::now());
            self.pending = holders.into_iter().map(|holder| (holder.name, holder.xid)).collect();
        } else {
            self.update(holders);
        }
        self.except();
        if self.pending.is_empty() {
            self.passed = self.passed.max(self.high);
        }
        below_rows
    }

    /// Removes the transactions that have ended from the list.
    ///
    /// PREPARE TRANSACTION gives a transaction another `virtualtransaction`, "-1/xid". While a session of the list may have
    /// been prepared, every prepared holder counts as one of the list.
    fn update(&mut self, holders: Vec<Writer>) {
        let sessions_left = self.pending.keys().any(|name| !is_prepared(name));
        let listed = |holder: &Writer| {
            self.pending.contains_key(&holder.name) || sessions_left && is_prepared(&holder.name)
        };
        let left = holders.into_iter().filter(listed).map(|holder| (holder.name, holder.xid)).collect();
        self.pending = left;
    }

    /// Excepts the transactions of the list if they have been open for long. Those without a transaction id may still get any.
    fn except(&mut self) {
        let xids: Vec<i64> = self.pending.values().filter_map(|xid| *xid).collect();
        let fits = xids.len() == self.pending.len() && self.excepted.len() + xids.len() <= EXCEPTED_MAX;
        if fits && self.begun.elapsed() >= EXCEPTED_AFTER {
            // None of them had drawn an id when the holders for the fence before this one were listed.
            let exception = Exception { below: self.passed, since: self.begun, missed: false };
            self.excepted.extend(xids.into_iter().map(|xid| (xid, exception)));
            self.pending.clear();
        }
    }
}

fn is_prepared(holder: &str) -> bool {
    holder.starts_with("-1/")
}

/// The maximum number of gaps that a flow searches. Each is one index lookup per read.
pub(crate) const FLOW_GAPS_MAX: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenIds {
    /// For ids up to this one, it is unknown which were seen.
    unknown_to: i64,
    /// The highest id seen, or the fence if that is higher.
    pub(crate) highest: i64,
    /// Unseen ids between the two.
    gaps: BTreeSet<i64>,
    gaps_max: usize,
}

impl SeenIds {
    pub(crate) fn new(gaps_max: usize) -> SeenIds {
        SeenIds { unknown_to: i64::MIN, highest: i64::MIN, gaps: BTreeSet::new(), gaps_max }
    }

    pub(crate) fn gaps(&self) -> Vec<i64> {
        self.gaps.iter().copied().collect()
    }

    pub(crate) fn has(&self, id: i64) -> bool {
        id <= self.highest && !self.gaps.contains(&id) && id >= self.unknown_to
    }

    pub fn add(&mut self, ids: impl IntoIterator<Item = i64>) {
        let mut ids: Vec<i64> = ids.into_iter().collect();
        let Some(last) = ids.iter().max().copied() else { return };
        // A slice of a backlog: there is no need to sort its ids.
        if last.saturating_sub(self.highest) > (self.gaps_max + ids.len()) as i64 {
            return self.skip_to(last);
        }
        if last <= self.highest && self.gaps.is_empty() {
            return;
        }
        ids.sort_unstable();
        for id in ids {
            if id <= self.highest {
                self.gaps.remove(&id);
                continue;
            }
            if self.gaps.len() as i64 + (id - self.highest - 1) > self.gaps_max as i64 {
                self.skip_to(id);
            } else {
                self.gaps.extend(self.highest + 1..id);
                self.highest = id;
            }
        }
    }

    /// Discards the gaps below this id, because there are too many.
    fn skip_to(&mut self, id: i64) {
        (self.unknown_to, self.highest) = (id, id);
        self.gaps.clear();
    }

    /// Ids up to this one were read or will never be committed. Returns whether every id is accounted for: seen, a gap, or
    /// greater than the highest one.
    pub fn pass(&mut self, fenced: i64) -> bool {
        if fenced >= self.highest {
            self.highest = fenced;
            self.gaps.clear();
        } else {
            self.gaps = self.gaps.split_off(&fenced.saturating_add(1));
        }
        self.highest > i64::MIN && fenced >= self.unknown_to
    }
}

#[cfg(test)]
mod tests;
