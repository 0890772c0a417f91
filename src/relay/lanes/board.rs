//! The board: which lanes have work, and who has them in hand.
//!
//! The scout puts lanes up, workers take them down. A lane is with one worker of this process at most; between
//! processes the lane lock decides, and a lane that somebody else holds is tried again after a backoff.

use crate::relay::lane::{LANES, Lane};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// At most this many lanes a claim, so that the others of the 64 stay free for other workers and relays.
const CLAIM_LANES_MAX: usize = 16;
/// The first wait for a lane that somebody else holds; it doubles up to [`ELSEWHERE_MOST`].
const ELSEWHERE_FIRST: Duration = Duration::from_millis(2);
const ELSEWHERE_MOST: Duration = Duration::from_millis(100);

/// Shared by the scout and the workers of one relay.
pub struct Board {
    state: RefCell<State>,
    /// Wakes workers: a lane was put up, or the relay stops.
    up: Notify,
    /// Wakes the scout: a worker has nothing to do.
    free: Notify,
    /// Wakes the prober: a worker is done with lanes.
    returned: Notify,
}

struct State {
    ready: VecDeque<Lane>,
    lanes: [LaneState; LANES],
    waiting_workers: usize,
    progress: bool,
    stopped: bool,
}

#[derive(Clone, Copy, Default)]
struct LaneState {
    ready: bool,
    in_hand: bool,
    /// The prober wants it: no worker gets it next.
    reserved: bool,
    /// Somebody else holds it: not before this.
    not_before: Option<Instant>,
    elsewhere: u32,
    /// It had more work when its last batch ended.
    more: bool,
    /// It had more work than its share of the last batch, which was not full.
    hungry: bool,
}

/// A lane that a worker had and that has more work at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// The lane.
    pub lane: Lane,
    /// Its turn has not come yet: before the others. Else it comes behind them.
    pub front: bool,
    /// It may have the room that the others leave in a batch.
    pub hungry: bool,
}

impl Board {
    /// Nothing is known to have work.
    pub(crate) fn new() -> Board {
        let state = State {
            ready: VecDeque::new(),
            lanes: [LaneState::default(); LANES],
            waiting_workers: 0,
            progress: false,
            stopped: false,
        };
        Board { state: RefCell::new(state), up: Notify::new(), free: Notify::new(), returned: Notify::new() }
    }

    /// Lanes for a free worker: its share of those that are up. `None` once the relay stops.
    pub(crate) async fn take(&self) -> Option<Vec<Lane>> {
        loop {
            let changed = self.up.notified();
            {
                let mut state = self.state.borrow_mut();
                if state.stopped {
                    return None;
                }
                if !state.ready.is_empty() {
                    return Some(state.share());
                }
                state.waiting_workers += 1;
            }
            self.free.notify_one();
            changed.await;
            self.state.borrow_mut().waiting_workers -= 1;
        }
    }

    /// Puts up lanes that have work, behind those that are up already.
    pub(crate) fn put_up(&self, lanes: impl IntoIterator<Item = Lane>) {
        let mut state = self.state.borrow_mut();
        for lane in lanes {
            state.put(lane, false);
        }
        if !state.ready.is_empty() {
            self.up.notify_waiters();
        }
    }

    /// A worker is done with these lanes. Of those in `again` there is more work at once.
    pub(crate) fn give_back(&self, lanes: &[Lane], again: &[Again]) {
        let mut state = self.state.borrow_mut();
        for lane in lanes {
            let entry = &mut state.lanes[lane.index()];
            *entry = LaneState { reserved: entry.reserved, ..LaneState::default() };
        }
        self.returned.notify_waiters();
        for again in again.iter().rev().filter(|again| again.front) {
            state.put(again.lane, true);
        }
        for again in again.iter().filter(|again| !again.front) {
            state.put(again.lane, false);
            state.lanes[again.lane.index()].hungry = again.hungry;
        }
        for again in again {
            state.lanes[again.lane.index()].more = true;
        }
        if !state.ready.is_empty() {
            self.up.notify_waiters();
        }
    }

    /// How many rows to read of each of these lanes, that a batch holds: the same of each, so that the rows of a batch
    /// lie close together in the table, where reading and marking them costs less. A hungry lane gets what the
    /// others leave, since those come first.
    pub(crate) fn shares(&self, lanes: &[Lane], batch_rows: usize) -> Vec<usize> {
        let state = self.state.borrow();
        let equal = batch_rows.div_ceil(lanes.len().max(1));
        let share = |lane: &Lane| if state.lanes[lane.index()].hungry { batch_rows } else { equal };
        lanes.iter().map(share).collect()
    }

    /// Whether one of these lanes is known to have a backlog.
    pub(crate) fn has_more(&self, lanes: &[Lane]) -> bool {
        let state = self.state.borrow();
        lanes.iter().any(|lane| state.lanes[lane.index()].more)
    }

    /// Whether one of these lanes was somebody else's when it was last tried.
    pub(crate) fn was_elsewhere(&self, lanes: &[Lane]) -> bool {
        let state = self.state.borrow();
        lanes.iter().any(|lane| state.lanes[lane.index()].elsewhere > 0)
    }

    /// Somebody else holds these lanes.
    pub(crate) fn elsewhere(&self, lanes: &[Lane]) {
        let mut state = self.state.borrow_mut();
        for lane in lanes {
            let lane = &mut state.lanes[lane.index()];
            let wait = ELSEWHERE_FIRST.saturating_mul(1 << lane.elsewhere.min(10)).min(ELSEWHERE_MOST);
            *lane = LaneState {
                not_before: Some(Instant::now() + wait),
                elsewhere: lane.elsewhere + 1,
                reserved: lane.reserved,
                ..LaneState::default()
            };
        }
        self.returned.notify_waiters();
    }

    /// Nothing can be done with this lane before then: nobody asks about it or takes it until it is put up again.
    pub(crate) fn set_aside(&self, lane: Lane, until: Instant) {
        let mut state = self.state.borrow_mut();
        state.ready.retain(|ready| *ready != lane);
        let entry = &mut state.lanes[lane.index()];
        *entry = LaneState { not_before: Some(until), reserved: entry.reserved, ..LaneState::default() };
    }

    /// Keeps a lane from the workers until [`Board::give_up`], and waits until none of them has it.
    pub(crate) async fn reserve(&self, lane: Lane) {
        loop {
            let changed = self.returned.notified();
            {
                let mut state = self.state.borrow_mut();
                let entry = &mut state.lanes[lane.index()];
                entry.reserved = true;
                if !entry.in_hand {
                    *entry = LaneState { in_hand: true, reserved: true, ..LaneState::default() };
                    state.ready.retain(|ready| *ready != lane);
                    return;
                }
            }
            changed.await;
        }
    }

    /// The prober waits for this lane no longer; a worker has it.
    pub(crate) fn forgo(&self, lane: Lane) {
        self.state.borrow_mut().lanes[lane.index()].reserved = false;
    }

    /// The prober is done with this lane.
    pub(crate) fn give_up(&self, lane: Lane) {
        self.state.borrow_mut().lanes[lane.index()] = LaneState::default();
    }

    /// Lanes that the scout should ask about: not up, not in hand, not known to be held elsewhere just now.
    pub(crate) fn unknown(&self) -> Vec<Lane> {
        let state = self.state.borrow();
        let now = Instant::now();
        let unknown = |lane: &Lane| {
            let lane = &state.lanes[lane.index()];
            !lane.ready && !lane.in_hand && lane.not_before.is_none_or(|at| at <= now)
        };
        Lane::all().filter(unknown).collect()
    }

    /// A worker has nothing to do.
    pub(crate) fn has_free_worker(&self) -> bool {
        self.state.borrow().waiting_workers > 0
    }

    /// Waits until a worker has nothing to do.
    pub(crate) async fn worker_free(&self) {
        while self.state.borrow().waiting_workers == 0 && !self.state.borrow().stopped {
            self.free.notified().await;
        }
    }

    /// Rows were settled.
    pub(crate) fn progressed(&self) {
        self.state.borrow_mut().progress = true;
    }

    /// Whether rows were settled since the last call.
    pub(crate) fn take_progress(&self) -> bool {
        std::mem::take(&mut self.state.borrow_mut().progress)
    }

    /// The relay stops.
    pub fn is_stopped(&self) -> bool {
        self.state.borrow().stopped
    }

    /// Waits until the relay stops.
    pub(crate) async fn stopped(&self) {
        loop {
            let changed = self.up.notified();
            if self.is_stopped() {
                return;
            }
            changed.await;
        }
    }

    /// Hands out nothing more.
    pub fn stop(&self) {
        self.state.borrow_mut().stopped = true;
        self.up.notify_waiters();
        self.free.notify_one();
    }
}

impl State {
    fn put(&mut self, lane: Lane, front: bool) {
        let entry = &mut self.lanes[lane.index()];
        if entry.ready || entry.in_hand || entry.reserved {
            return;
        }
        entry.ready = true;
        entry.not_before = None;
        if front {
            self.ready.push_front(lane);
        } else {
            self.ready.push_back(lane);
        }
    }

    fn share(&mut self) -> Vec<Lane> {
        let workers = self.waiting_workers + 1;
        let share = self.ready.len().div_ceil(workers).min(CLAIM_LANES_MAX);
        let mut lanes: Vec<Lane> = self.ready.drain(..share).collect();
        lanes.sort_by_key(|lane| self.lanes[lane.index()].hungry);
        for lane in &lanes {
            let entry = &mut self.lanes[lane.index()];
            entry.ready = false;
            entry.in_hand = true;
        }
        lanes
    }
}

impl Default for Board {
    fn default() -> Self {
        Board::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hungry_lane_gets_what_the_others_leave() {
        let board = Board::new();
        let [hot, cold]: [Lane; 2] = Lane::all().take(2).collect::<Vec<_>>().try_into().unwrap();
        board.put_up([hot, cold]);
        assert_eq!(board.take().await, Some(vec![hot, cold]));
        assert_eq!(board.shares(&[hot, cold], 11), [6, 6], "equal shares fill the batch");
        let again = |lane, hungry| Again { lane, front: false, hungry };
        board.give_back(&[hot, cold], &[again(hot, true), again(cold, false)]);
        assert_eq!(board.take().await, Some(vec![cold, hot]), "the others come first");
        assert_eq!(board.shares(&[cold, hot], 11), [6, 11]);
        board.give_back(&[hot, cold], &[again(hot, false)]);
        assert_eq!(board.shares(&[hot], 11), [11]);
        assert_eq!(board.shares(&[cold, hot], 11), [6, 6], "it is hungry no longer");
    }

    #[tokio::test]
    async fn a_lane_is_somebody_elses_until_a_worker_had_it() {
        let board = Board::new();
        let lane = Lane::all().next().unwrap();
        board.put_up([lane]);
        assert_eq!(board.take().await, Some(vec![lane]));
        assert!(!board.was_elsewhere(&[lane]));
        board.elsewhere(&[lane]);
        board.put_up([lane]);
        assert_eq!(board.take().await, Some(vec![lane]));
        assert!(board.was_elsewhere(&[lane]));
        board.give_back(&[lane], &[]);
        assert!(!board.was_elsewhere(&[lane]));
    }

    #[tokio::test]
    async fn a_lane_that_is_waited_for_in_vain_stays_with_its_worker() {
        let board = Board::new();
        let lane = Lane::all().next().unwrap();
        board.put_up([lane]);
        assert_eq!(board.take().await, Some(vec![lane]));
        let waited = tokio::time::timeout(Duration::from_millis(1), board.reserve(lane)).await;
        assert!(waited.is_err(), "it is in hand");
        board.forgo(lane);
        board.put_up([lane]);
        assert!(!board.unknown().contains(&lane) && board.state.borrow().ready.is_empty(), "it still is");
        board.give_back(&[lane], &[Again { lane, front: true, hungry: false }]);
        assert_eq!(board.take().await, Some(vec![lane]), "nobody waits for it any more");
    }
}
