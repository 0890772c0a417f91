//! Lanes: the fixed hash partitions of the keys, the unit of ordering and of claiming.
//!
//! The scout finds lanes with unsent rows and puts them on the board, from which the workers take them. At most one worker of
//! this process has a lane. Between processes the lane lock decides. A lane that another relay has locked is tried again after a
//! backoff. The low-water marks keep reads short, and the fence makes the marks safe.

pub mod marks;
pub mod scout;

use crate::{Coverage, until};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The number of lanes. It is part of the schema (`sql/0001_outbox.sql`) and not a setting: two relays that disagreed about
/// it could publish one key at the same time.
pub const LANES: usize = 64;

/// One lane, `hashtext(aggregate_id) & 63`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

impl Lane {
    pub fn new(number: i64) -> Option<Lane> {
        u8::try_from(number).ok().filter(|&n| usize::from(n) < LANES).map(Lane)
    }

    pub fn all() -> impl Iterator<Item = Lane> {
        (0..LANES as u8).map(Lane)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The `smallint` of the lane table.
    pub fn number(self) -> i16 {
        i16::from(self.0)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.0)
    }
}

/// The maximum number of lanes per claim, so that other workers and relays get some of the 64. A claim that expects few rows
/// takes all.
pub(crate) const CLAIM_LANES_MAX: usize = 16;
/// The first wait for a lane that another relay has locked. It doubles up to [`LOCKED_MOST`].
const LOCKED_FIRST: Duration = Duration::from_millis(2);
const LOCKED_MOST: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Board {
    state: RefCell<BoardState>,
    /// Each waiting worker has a clone, and drops it also if it stops waiting.
    waiting_workers: Rc<()>,
    stopped: Cell<bool>,
    /// Rows were settled. The scout takes these three.
    pub(crate) progress: Cell<bool>,
    /// Rows may wait in a lane that is not on the board, so the scout has to scan.
    pub(crate) doubt: Cell<bool>,
    pub(crate) lost: Cell<bool>,
    pub(crate) arrived_at: Cell<Option<Instant>>,
    /// Whether work arrived so soon after the work before that more will probably follow.
    pub(crate) arrives_often: Cell<bool>,
    /// Wakes workers when a lane has work or the relay stops.
    up: Notify,
    /// Wakes the scout when a worker is idle.
    free: Notify,
    /// Wakes the prober and the scout when lanes are returned.
    pub(crate) returned: Notify,
    /// Wakes the scout when it has to scan.
    doubted: Notify,
}

struct BoardState {
    ready: VecDeque<Lane>,
    lanes: [LaneState; LANES],
}

#[derive(Clone, Copy, Default)]
struct LaneState {
    ready: bool,
    taken: bool,
    /// The prober waits for it, so no worker gets it next.
    reserved: bool,
    /// When to try it again, after another relay had locked it.
    not_before: Option<Instant>,
    /// How many times in a row another relay had locked it.
    locked_by_others: u32,
    /// It had more work when its last batch ended.
    more: bool,
    /// It used its whole share of the last batch, which was not full. It may use the room that the others leave in the next one.
    used_share: bool,
    /// A row has arrived while a worker had it.
    again: bool,
}

impl LaneState {
    fn is_aside(&self) -> bool {
        self.not_before.is_some_and(|at| at > Instant::now())
    }
}

impl Board {
    /// Waits for lanes with work and returns an idle worker's share of them, or `None` once the relay stops. Cancel-safe.
    pub(crate) async fn take(&self) -> Option<Vec<Lane>> {
        loop {
            let changed = self.up.notified();
            if self.stopped.get() {
                return None;
            }
            if !self.state.borrow().ready.is_empty() {
                return Some(self.state.borrow_mut().share(self.waiting_workers() + 1));
            }
            let _waits = Rc::clone(&self.waiting_workers);
            self.free.notify_one();
            changed.await;
        }
    }

    /// Also takes the other free lanes, for a claim that expects few rows. If a lane is known to have a backlog, takes none.
    pub(crate) fn take_rest(&self) -> Vec<Lane> {
        let mut state = self.state.borrow_mut();
        if state.lanes.iter().any(|lane| lane.more) {
            return Vec::new();
        }
        let lanes = state.lanes_that(|lane| !lane.taken && !lane.reserved && !lane.is_aside());
        for lane in &lanes {
            let entry = &mut state.lanes[lane.index()];
            (entry.ready, entry.taken) = (false, true);
        }
        state.ready.retain(|lane| !lanes.contains(lane));
        lanes
    }

    /// Puts lanes with work on the board, after those that are there already.
    pub(crate) fn add(&self, lanes: impl IntoIterator<Item = Lane>) {
        let mut state = self.state.borrow_mut();
        lanes.into_iter().for_each(|lane| state.put(lane, false));
        self.wake_workers(&state);
    }

    /// Puts lanes with new rows on the board. A lane that a worker has follows when the worker returns it.
    pub(crate) fn add_new(&self, lanes: impl IntoIterator<Item = Lane>) {
        let mut state = self.state.borrow_mut();
        for lane in lanes {
            let entry = &mut state.lanes[lane.index()];
            entry.again |= entry.taken;
            if entry.is_aside() || entry.reserved {
                self.doubt.set(true);
            } else {
                state.put(lane, false);
            }
        }
        self.wake_workers(&state);
    }

    fn wake_workers(&self, state: &BoardState) {
        if !state.ready.is_empty() {
            self.up.notify_waiters();
        }
    }

    /// Records that rows may wait in lanes that are not on the board, so that the scout has to scan.
    pub fn doubt(&self) {
        self.doubt.set(true);
        self.doubted.notify_one();
    }

    /// Returns these lanes of a worker, and puts those with more work on the board again. A lane that was not read goes before the
    /// other lanes instead of after them.
    pub(crate) fn give_back(&self, lanes: &[Lane], coverage: &[Coverage]) {
        let mut state = self.state.borrow_mut();
        let mut again = Vec::new();
        for lane in lanes {
            let entry = &mut state.lanes[lane.index()];
            again.extend(entry.again.then_some(*lane));
            *entry = LaneState { reserved: entry.reserved, ..LaneState::default() };
        }
        self.returned.notify_waiters();
        let (unread, read): (Vec<&Coverage>, Vec<&Coverage>) = coverage
            .iter()
            .filter(|coverage| coverage.has_more())
            .partition(|coverage| coverage.last_read.is_none());
        unread.iter().rev().for_each(|coverage| state.put(coverage.lane, true));
        read.iter().for_each(|coverage| state.put(coverage.lane, false));
        for coverage in unread.into_iter().chain(read) {
            let entry = &mut state.lanes[coverage.lane.index()];
            (entry.more, entry.used_share) = (entry.ready, coverage.used_share);
        }
        again.into_iter().for_each(|lane| state.put(lane, false));
        self.wake_workers(&state);
    }

    /// How many rows to read of each of these lanes. All get the same share, so that the rows of a batch are close together
    /// in the table, which makes reading and marking them cheaper. Lanes that used their share come last and get what the
    /// others leave. A claim of all lanes expects few rows, so any lane may use the whole limit.
    pub(crate) fn shares(&self, lanes: &[Lane], batch_rows: usize) -> Vec<usize> {
        let state = self.state.borrow();
        let equal = batch_rows.div_ceil(lanes.len().max(1));
        let may_use_all = |lane: &Lane| lanes.len() > CLAIM_LANES_MAX || state.lanes[lane.index()].used_share;
        let share = |lane: &Lane| if may_use_all(lane) { batch_rows } else { equal };
        lanes.iter().map(share).collect()
    }

    /// Whether one of these lanes is known to have a backlog.
    pub(crate) fn has_more(&self, lanes: &[Lane]) -> bool {
        let state = self.state.borrow();
        lanes.iter().any(|lane| state.lanes[lane.index()].more)
    }

    /// Whether `lanes` are all that this relay can have: the others are set aside, or reserved for the prober.
    pub(crate) fn leaves_none(&self, lanes: &[Lane]) -> bool {
        let others = self.state.borrow().lanes_that(|lane| !lane.reserved && !lane.is_aside());
        others.iter().all(|lane| lanes.contains(lane))
    }

    /// Whether another relay had locked one of these lanes when it was last tried.
    pub(crate) fn were_locked_by_others(&self, lanes: &[Lane]) -> bool {
        let state = self.state.borrow();
        lanes.iter().any(|lane| state.lanes[lane.index()].locked_by_others > 0)
    }

    pub(crate) fn locked_by_others(&self, lanes: &[Lane]) {
        let mut state = self.state.borrow_mut();
        self.lost.set(self.lost.get() || !lanes.is_empty());
        for lane in lanes {
            let lane = &mut state.lanes[lane.index()];
            let wait = LOCKED_FIRST.saturating_mul(1 << lane.locked_by_others.min(10)).min(LOCKED_MOST);
            *lane = LaneState {
                not_before: Some(Instant::now() + wait),
                locked_by_others: lane.locked_by_others + 1,
                reserved: lane.reserved,
                ..LaneState::default()
            };
        }
        self.returned.notify_waiters();
    }

    /// Takes this lane off the board, and out of the scout's scans, until this time.
    pub(crate) fn set_aside(&self, lane: Lane, until: Instant) {
        let mut state = self.state.borrow_mut();
        self.doubt.set(true);
        state.ready.retain(|ready| *ready != lane);
        let entry = &mut state.lanes[lane.index()];
        *entry = LaneState { not_before: Some(until), reserved: entry.reserved, ..LaneState::default() };
    }

    /// Reserves these lanes for the prober until [`Board::end_reservation`]. Returns those that no worker has.
    pub(crate) fn reserve(&self, lanes: &[Lane]) -> Vec<Lane> {
        let mut state = self.state.borrow_mut();
        let mut free = Vec::new();
        for lane in lanes {
            let entry = &mut state.lanes[lane.index()];
            entry.reserved = true;
            if !entry.taken {
                *entry = LaneState { taken: true, reserved: true, ..LaneState::default() };
                free.push(*lane);
            }
        }
        state.ready.retain(|ready| !free.contains(ready));
        free
    }

    /// Cancels a reservation of a lane that a worker has, or has given back meanwhile: the board did not take it then.
    pub(crate) fn cancel_reservation(&self, lane: Lane) {
        self.state.borrow_mut().lanes[lane.index()].reserved = false;
        self.doubt();
    }

    pub(crate) fn end_reservation(&self, lane: Lane) {
        self.state.borrow_mut().lanes[lane.index()] = LaneState::default();
        self.returned.notify_waiters();
        self.doubt();
    }

    /// Lanes that the scout should scan: not on the board, not with a worker, and not set aside.
    pub(crate) fn lanes_to_scan(&self) -> Vec<Lane> {
        self.state.borrow().lanes_that(|lane| !lane.ready && !lane.taken && !lane.is_aside())
    }

    /// Whether each lane is with a worker or free: none is on the board, set aside or reserved.
    pub(crate) fn none_waits(&self) -> bool {
        let waits = |lane: &LaneState| lane.reserved || !lane.taken && (lane.ready || lane.is_aside());
        !self.state.borrow().lanes.iter().any(waits)
    }

    /// Notes that a worker begins with lanes that have work. Work that follows within `gap` is frequent. So is all work of the
    /// last idle worker: the others may wait for silent partitions, and lanes that it did not take would wait for it.
    pub(crate) fn note_arrival(&self, gap: Duration) {
        let soon = self.arrived_at.get().is_some_and(|at| at.elapsed() < gap);
        self.arrives_often.set(soon || !self.has_free_worker());
        self.arrived_at.set(Some(Instant::now()));
    }

    pub(crate) fn is_taken(&self, lane: Lane) -> bool {
        self.state.borrow().lanes[lane.index()].taken
    }

    pub(crate) fn all_taken(&self) -> bool {
        self.state.borrow().lanes.iter().all(|lane| lane.taken)
    }

    pub(crate) fn has_free_worker(&self) -> bool {
        self.waiting_workers() > 0
    }

    fn waiting_workers(&self) -> usize {
        Rc::strong_count(&self.waiting_workers) - 1
    }

    /// Waits until a worker is idle, then until some lane is free.
    pub(crate) async fn worker_and_lane_free(&self) {
        until(&self.free, || self.has_free_worker() || self.is_stopped()).await;
        until(&self.returned, || !self.all_taken() || self.is_stopped()).await;
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    pub(crate) async fn stopped(&self) {
        until(&self.up, || self.is_stopped()).await;
    }

    /// Stops the relay: no more lanes are given to workers.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.up.notify_waiters();
        self.free.notify_one();
    }
}

impl Default for BoardState {
    fn default() -> BoardState {
        BoardState { ready: VecDeque::new(), lanes: [LaneState::default(); LANES] }
    }
}

impl BoardState {
    fn lanes_that(&self, are: impl Fn(&LaneState) -> bool) -> Vec<Lane> {
        Lane::all().filter(|lane| are(&self.lanes[lane.index()])).collect()
    }

    fn put(&mut self, lane: Lane, front: bool) {
        let entry = &mut self.lanes[lane.index()];
        if entry.ready || entry.taken || entry.reserved {
            return;
        }
        entry.ready = true;
        entry.not_before = None;
        if front { self.ready.push_front(lane) } else { self.ready.push_back(lane) }
    }

    fn share(&mut self, workers: usize) -> Vec<Lane> {
        let share = self.ready.len().div_ceil(workers).min(CLAIM_LANES_MAX);
        let mut lanes: Vec<Lane> = self.ready.drain(..share).collect();
        lanes.sort_by_key(|lane| self.lanes[lane.index()].used_share);
        for lane in &lanes {
            let entry = &mut self.lanes[lane.index()];
            (entry.ready, entry.taken) = (false, true);
        }
        lanes
    }
}

/// Statements that take less than this may cover twice as many lanes. It is less than half of the statement timeout, so
/// that the next one does not time out again.
const QUICK: Duration = Duration::from_secs(10);
/// How many quick statements in a row it takes until the next one covers twice as many lanes. One lane may be slower than
/// the others.
const QUICK_ONES: u32 = 4;
/// After this time without a timeout, one statement over fewer lanes is enough, if it would be quick over all of them. At low
/// rates, few lanes have work.
const QUICK_FOR: Duration = Duration::from_secs(300);

/// How many lanes or rows a statement covers. After a timeout the next one covers fewer.
pub(crate) struct Width {
    most: usize,
    now: Cell<usize>,
    quick_ones: Cell<u32>,
    changed_at: Cell<Instant>,
}

impl Width {
    pub(crate) fn new(most: usize) -> Width {
        Width { most, now: Cell::new(most), quick_ones: Cell::new(0), changed_at: Cell::new(Instant::now()) }
    }

    pub(crate) fn get(&self) -> usize {
        self.now.get()
    }

    /// Records that a statement over this many lanes timed out. Returns whether the next one covers fewer.
    pub(crate) fn timed_out(&self, lanes: usize) -> bool {
        self.now.set(self.now.get().min((lanes / 2).max(1)));
        self.quick_ones.set(0);
        self.changed_at.set(Instant::now());
        lanes > 1
    }

    /// Records that a statement over this many lanes or rows took that long. One over none shows nothing.
    pub(crate) fn worked(&self, lanes: usize, took: Duration) {
        if self.now.get() == self.most || lanes == 0 {
            return;
        }
        if lanes >= self.now.get() {
            self.quick_ones.set(if took < QUICK { self.quick_ones.get() + 1 } else { 0 });
        }
        let over_all = took.saturating_mul(LANES.div_ceil(lanes) as u32);
        let quick_for_long = over_all < QUICK && self.changed_at.get().elapsed() >= QUICK_FOR;
        if self.quick_ones.get() == QUICK_ONES || quick_for_long {
            self.quick_ones.set(0);
            self.changed_at.set(Instant::now());
            self.now.set(self.now.get().saturating_mul(2).min(self.most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[test]
    fn lanes_are_numbered_from_0_to_63() {
        assert_eq!(Lane::all().count(), 64);
        assert_eq!(Lane::new(63).map(Lane::number), Some(63));
        assert_eq!(Lane::new(64), None);
        assert_eq!(Lane::new(-1), None);
    }

    #[tokio::test]
    async fn a_lane_that_used_its_share_gets_what_the_others_leave() {
        let board = Board::default();
        let [hot, cold]: [Lane; 2] = Lane::all().take(2).collect::<Vec<_>>().try_into().unwrap();
        board.add([hot, cold]);
        assert_eq!(board.take().await, Some(vec![hot, cold]));
        assert_eq!(board.shares(&[hot, cold], 11), [6, 6], "equal shares fill the batch");
        let more =
            |lane, used_share| Coverage { lane, last_read: Some(1), first_open: None, cut: true, used_share };
        board.give_back(&[hot, cold], &[more(hot, true), more(cold, false)]);
        assert_eq!(board.take().await, Some(vec![cold, hot]), "the others come first");
        assert_eq!(board.shares(&[cold, hot], 11), [6, 11]);
        board.give_back(&[hot, cold], &[more(hot, false)]);
        assert_eq!(board.shares(&[hot], 11), [11]);
        assert_eq!(board.shares(&[cold, hot], 11), [6, 6], "it used less than its share since");
    }

    #[tokio::test]
    async fn a_worker_that_stops_waiting_leaves_the_lanes_to_the_others() {
        let board = Board::default();
        assert!(tokio::time::timeout(Duration::ZERO, board.take()).await.is_err());
        board.add(Lane::all().take(2));
        assert_eq!(board.take().await.map(|lanes| lanes.len()), Some(2), "no other worker waits");
    }

    #[tokio::test]
    async fn a_lane_counts_as_locked_elsewhere_until_a_worker_had_it() {
        let board = Board::default();
        let lane = Lane::all().next().unwrap();
        board.add([lane]);
        assert_eq!(board.take().await, Some(vec![lane]));
        assert!(!board.were_locked_by_others(&[lane]));
        board.locked_by_others(&[lane]);
        board.add([lane]);
        assert_eq!(board.take().await, Some(vec![lane]));
        assert!(board.were_locked_by_others(&[lane]));
        board.give_back(&[lane], &[]);
        assert!(!board.were_locked_by_others(&[lane]));
    }

    #[tokio::test]
    async fn a_lane_whose_reservation_is_cancelled_stays_with_its_worker() {
        let board = Board::default();
        let lane = Lane::all().next().unwrap();
        board.add([lane]);
        assert_eq!(board.take().await, Some(vec![lane]));
        assert!(board.reserve(&[lane]).is_empty(), "a worker has it");
        board.cancel_reservation(lane);
        board.add([lane]);
        assert!(
            !board.lanes_to_scan().contains(&lane) && board.state.borrow().ready.is_empty(),
            "it still has it"
        );
        board.give_back(&[lane], &[Coverage::unread(lane)]);
        assert_eq!(board.take().await, Some(vec![lane]), "it is no longer reserved");
        assert!(board.reserve(&[lane]).is_empty());
        board.give_back(&[lane], &[Coverage::unread(lane)]);
        board.doubt.set(false);
        board.cancel_reservation(lane);
        assert!(board.doubt.get(), "the lane has rows, but is not on the board");
    }

    const FAST: Duration = Duration::from_millis(1);

    #[test]
    fn a_timeout_halves_the_lanes_down_to_one() {
        let width = Width::new(16);
        for expected in [8, 4, 2, 1] {
            assert!(width.timed_out(width.get()));
            assert_eq!(width.get(), expected);
        }
        assert!(!width.timed_out(1), "one lane is the minimum");
        assert_eq!(width.get(), 1);
    }

    #[test]
    fn a_timeout_over_fewer_lanes_than_allowed_halves_those() {
        let width = Width::new(16);
        assert!(width.timed_out(6));
        assert_eq!(width.get(), 3);
        assert!(width.timed_out(12), "a statement that began before the other one timed out");
        assert_eq!(width.get(), 3);
    }

    #[test]
    fn quick_statements_double_the_lanes_up_to_all_of_them() {
        let width = Width::new(16);
        while width.timed_out(width.get()) {}
        for _ in 0..10 {
            width.worked(1, QUICK);
        }
        assert_eq!(width.get(), 1, "twice as many would take too long");
        for expected in [2, 4, 8, 16, 16] {
            for _ in 0..QUICK_ONES {
                width.worked(width.get(), FAST);
            }
            assert_eq!(width.get(), expected);
        }
    }

    #[test]
    fn a_quick_statement_over_fewer_lanes_than_allowed_changes_nothing() {
        let width = Width::new(16);
        width.timed_out(16);
        for _ in 0..10 {
            width.worked(2, FAST);
        }
        assert_eq!(width.get(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn at_low_rates_quick_statements_double_the_lanes_after_some_time() {
        let width = Width::new(16);
        width.timed_out(8);
        advance(QUICK_FOR).await;
        width.worked(1, QUICK / 32);
        assert_eq!(width.get(), 4, "it would be slow over all lanes");
        width.worked(1, FAST);
        width.worked(1, FAST);
        assert_eq!(width.get(), 8, "once");
        advance(QUICK_FOR).await;
        width.worked(1, FAST);
        assert_eq!(width.get(), 16);
    }
}
