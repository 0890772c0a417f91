//! The low-water marks. No row of a lane up to its mark is unsent, except rows that are held, blocked or paused. The claim
//! therefore does not walk index entries of sent rows that vacuum cannot remove yet.
//!
//! A mark is raised in four steps. None may be left out or reordered (ARCHITECTURE.md, "Low-water mark"):
//!
//! 1. Note H, the highest id of an unsent row that a read returned. Then list the transactions that hold RowExclusiveLock
//!    on the outbox.
//! 2. All of them have ended ([`crate::relay::lanes::fence`]), so no new row with an id <= H can appear.
//! 3. Only then is a read sent ([`Marks::snapshot`]).
//! 4. Its rows are settled and the COMMIT is confirmed ([`Marks::raise`]).

use crate::relay::lane::{LANES, Lane};
use crate::relay::lanes::fence::Fence;
use crate::relay::lanes::seen::{GAPS_MAX, SeenIds};
use crate::relay::outbox::ServerId;
use crate::relay::rows::coverage::Coverage;
use std::collections::HashSet;

/// Where a lane without a mark is read from.
pub(crate) const LOWEST: i64 = i64::MIN;

/// How many backends behind a pooler are remembered. If there are more, they and the marks are forgotten.
const SERVERS_MAX: usize = 1_000;

/// The marks of all lanes. They are in memory only.
pub struct Marks {
    epoch: u64,
    servers: HashSet<ServerId>,
    /// The basis for which the marks are valid; -1 for none.
    basis: i64,
    low: [i64; LANES],
    resets: [u32; LANES],
    /// The last sweep of the lane found a row below its mark.
    was_reset: [bool; LANES],
    /// The highest id of the unsent rows that reads returned: the H of the next fence.
    highest_read: i64,
    /// The ids of all rows that reads saw, for flows.
    seen: SeenIds,
    gaps_max: usize,
    fence: Fence,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swept {
    /// No row is below a mark.
    Clean,
    /// One lane is read from the smallest id again.
    Reset,
    /// All lanes are read from the smallest id again, and H and the fence are forgotten.
    Forgotten,
}

/// The marks and the fence when a read was sent. The result of the read is valid only for them.
#[derive(Clone, Debug)]
pub struct MarksSnapshot {
    epoch: u64,
    fenced: i64,
    resets: Vec<u32>,
    /// One per lane, in the order of the request.
    pub lows: Vec<i64>,
    /// The basis for which `lows` is valid.
    pub basis: i64,
}

impl MarksSnapshot {
    /// The epoch of the marks that the read belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The fence that had passed when the read was sent.
    pub(crate) fn fenced(&self) -> i64 {
        self.fenced
    }

    /// The part about `some` of the `lanes` of the read, in the same order.
    pub(crate) fn only(mut self, lanes: &[Lane], some: &[Lane]) -> MarksSnapshot {
        let kept: Vec<bool> = lanes.iter().map(|lane| some.contains(lane)).collect();
        let mut at = kept.iter();
        self.resets.retain(|_| at.next() == Some(&true));
        let mut at = kept.iter();
        self.lows.retain(|_| at.next() == Some(&true));
        self
    }
}

impl Marks {
    /// No marks.
    pub fn new() -> Marks {
        Marks::with_gaps_max(GAPS_MAX)
    }

    /// No marks. Flows search for at most this many gaps.
    pub fn with_gaps_max(gaps_max: usize) -> Marks {
        Marks {
            epoch: 0,
            servers: HashSet::new(),
            basis: -1,
            low: [LOWEST; LANES],
            resets: [0; LANES],
            was_reset: [false; LANES],
            highest_read: LOWEST,
            seen: SeenIds::new(gaps_max),
            gaps_max,
            fence: Fence::new(),
        }
    }

    /// Forgets everything, because the server may have lost commits and issue their ids again.
    pub(crate) fn forget(&mut self) {
        *self = Marks { epoch: self.epoch + 1, ..Marks::with_gaps_max(self.gaps_max) };
    }

    /// Forgets all marks, H and the fence of a known server, because ids below them may be issued again.
    fn forget_ids(&mut self) {
        let servers = std::mem::take(&mut self.servers);
        self.forget();
        self.servers = servers;
    }

    /// Forgets everything if this server, or this backend behind a pooler, is new.
    pub fn note_server(&mut self, server: ServerId) {
        if self.servers.contains(&server) {
            return;
        }
        let mut servers = std::mem::take(&mut self.servers);
        servers.retain(|known| known.started_us == server.started_us);
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        servers.insert(server);
        self.forget();
        self.servers = servers;
    }

    /// Changes with every [`Marks::forget`]. Results of reads from an older epoch are ignored.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The marks and the fence for a read that is about to be sent.
    pub fn snapshot(&self, lanes: &[Lane]) -> MarksSnapshot {
        MarksSnapshot {
            epoch: self.epoch,
            fenced: self.fence.passed(),
            resets: lanes.iter().map(|lane| self.resets[lane.index()]).collect(),
            lows: lanes.iter().map(|lane| self.low[lane.index()]).collect(),
            basis: self.basis,
        }
    }

    /// Notes the basis in the snapshot of a read of `epoch`. A change invalidates every mark, because marks may be above rows
    /// of held topics, which can be read again when a hold has ended. (A new hold does not change the basis.) If the table
    /// has another file, ids may start again, so H and the fence are forgotten as well.
    pub fn note_basis(&mut self, epoch: u64, basis: i64) {
        if epoch != self.epoch || basis == self.basis {
            return;
        }
        if self.basis != -1 && file(basis) != file(self.basis) {
            self.forget_ids();
        }
        self.basis = basis;
        self.low = [LOWEST; LANES];
    }

    /// Notes the ids of unsent rows that a read of `epoch` returned.
    pub fn note_ids(&mut self, epoch: u64, ids: impl IntoIterator<Item = i64> + Clone) {
        if epoch == self.epoch {
            self.highest_read = ids.clone().into_iter().fold(self.highest_read, i64::max);
            self.seen.add(ids);
        }
    }

    /// Notes the ids of rows of any lane, sent or not, that a flow of `epoch` saw. They do not change H: otherwise one very
    /// large id of a sent row would raise all marks above the ids that are drawn now.
    pub(crate) fn note_seen(&mut self, epoch: u64, ids: &[i64]) {
        if epoch == self.epoch {
            self.seen.add(ids.iter().copied());
        }
    }

    /// H of the next fence.
    pub(crate) fn highest_read(&self) -> i64 {
        self.highest_read
    }

    /// The search of a flow whose first read is about to be sent. `None` if it is unknown which earlier ids were read.
    pub(crate) fn search(&mut self) -> Option<SeenIds> {
        self.seen.pass(self.fence.passed()).then(|| self.seen.clone())
    }

    /// The fence.
    pub fn fence(&mut self) -> &mut Fence {
        &mut self.fence
    }

    /// Compares the first unsent row of each of these lanes, as found by a sweep, with `lows`, their marks when the sweep was
    /// sent, unless they are lower now. Marks that were raised meanwhile may be above rows that are sent by now. A row below the mark of its
    /// lane was reset to unsent, so the lane is read from the smallest id again. Several such lanes, or the same one twice in
    /// a row, mean that ids went backwards: the sequence was restarted, or one id was very large. H is then far above the ids
    /// that are drawn now, and the marks would rise above them again, so everything is forgotten.
    pub(crate) fn swept(&mut self, lanes: &[Lane], lows: &[i64], first_unsent: &[(Lane, i64)]) -> Swept {
        let below = |(lane, low): &(Lane, i64)| {
            first_unsent.iter().any(|(its, id)| its == lane && id <= low && *id <= self.low(*lane))
        };
        let with_lows = lanes.iter().copied().zip(lows.iter().copied());
        let below: Vec<Lane> = with_lows.filter(below).map(|(lane, _)| lane).collect();
        if below.len() > 1 || below.iter().any(|lane| self.was_reset[lane.index()]) {
            self.forget_ids();
            return Swept::Forgotten;
        }
        for lane in lanes {
            let is_below = below.contains(lane);
            self.was_reset[lane.index()] = is_below;
            if is_below {
                self.low[lane.index()] = LOWEST;
                self.resets[lane.index()] += 1;
            }
        }
        if below.is_empty() { Swept::Clean } else { Swept::Reset }
    }

    /// Whether the marks are valid for this basis.
    pub(crate) fn are_for(&self, basis: i64) -> bool {
        self.basis == basis
    }

    pub(crate) fn low(&self, lane: Lane) -> i64 {
        self.low[lane.index()]
    }

    /// Raises the marks after a confirmed COMMIT that recorded every row except those that `coverage` names as open. `basis` is
    /// that of the read's snapshot.
    pub fn raise(&mut self, snapshot: &MarksSnapshot, basis: i64, coverage: &[Coverage]) {
        if snapshot.epoch != self.epoch || basis != self.basis {
            return;
        }
        for (coverage, resets) in coverage.iter().zip(&snapshot.resets) {
            let lane = coverage.lane.index();
            let Some(covers_to) = coverage.covers_to() else { continue };
            if self.resets[lane] == *resets {
                let before_first_open = coverage.first_open.map_or(i64::MAX, |id| id - 1);
                let raised = snapshot.fenced.min(covers_to).min(before_first_open);
                self.low[lane] = self.low[lane].max(raised);
            }
        }
    }
}

/// The file of the table, which is part of the basis.
fn file(basis: i64) -> u32 {
    basis as u32
}

impl Default for Marks {
    fn default() -> Self {
        Marks::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId { connection: 1, started_us: 1, backend: 1 };
    const BASIS: i64 = 77;
    /// A hold has ended.
    const NEXT_BASIS: i64 = (1 << 32) | BASIS;

    fn lane() -> Lane {
        Lane::new(5).unwrap()
    }

    fn fenced(high: i64) -> Marks {
        let mut marks = Marks::new();
        marks.note_server(SERVER);
        marks.note_basis(marks.epoch(), BASIS);
        marks.fence().begin(high, []);
        marks
    }

    fn read_to_the_end() -> Coverage {
        Coverage { lane: lane(), last_read: Some(90), first_open: None, cut: false, hungry: false }
    }

    #[test]
    fn a_mark_rises_to_the_fence_and_no_further() {
        let mut marks = fenced(50);
        let snapshot = marks.snapshot(&[lane()]);
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), 50);
    }

    #[test]
    fn a_mark_stays_below_the_first_open_row_and_at_the_cut() {
        let mut marks = fenced(50);
        let snapshot = marks.snapshot(&[lane()]);
        marks.raise(&snapshot, BASIS, &[Coverage { first_open: Some(31), ..read_to_the_end() }]);
        assert_eq!(marks.low(lane()), 30);
        marks.raise(&snapshot, BASIS, &[Coverage { cut: true, last_read: Some(40), ..read_to_the_end() }]);
        assert_eq!(marks.low(lane()), 40);
    }

    #[test]
    fn a_read_that_was_sent_before_the_fence_passed_raises_nothing() {
        let mut marks = fenced(50);
        marks.fence().begin(80, ["3/1".to_owned()]);
        let snapshot = marks.snapshot(&[lane()]);
        marks.fence().update([]);
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), 50, "the read began under the older fence");
    }

    #[test]
    fn the_end_of_a_hold_invalidates_every_mark() {
        let mut marks = fenced(50);
        marks.note_ids(marks.epoch(), [7]);
        let snapshot = marks.snapshot(&[lane()]);
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert!(!marks.are_for(NEXT_BASIS), "events that waited may be below the marks");
        marks.note_basis(marks.epoch(), NEXT_BASIS);
        assert_eq!(marks.highest_read(), 7, "H stays");
        assert_eq!(marks.low(lane()), LOWEST);
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), LOWEST, "a read from before the end raises nothing");
    }

    /// A sweep during which no mark changes.
    fn sweep(marks: &mut Marks, lanes: &[Lane], first_unsent: &[(Lane, i64)]) -> Swept {
        let lows = marks.snapshot(lanes).lows;
        marks.swept(lanes, &lows, first_unsent)
    }

    #[test]
    fn marks_that_were_raised_during_a_sweep_are_not_compared_with_its_rows() {
        let mut marks = fenced(50);
        let other = Lane::new(6).unwrap();
        let lanes = [lane(), other];
        let snapshot = marks.snapshot(&lanes);
        // The sweep reads two unsent rows. They are settled before its answer arrives.
        let found = [(lane(), 3), (other, 4)];
        let coverage = [read_to_the_end(), Coverage { lane: other, ..read_to_the_end() }];
        marks.raise(&snapshot, BASIS, &coverage);
        assert_eq!(marks.swept(&lanes, &snapshot.lows, &found), Swept::Clean);
        assert_eq!(marks.low(lane()), 50);
    }

    #[test]
    fn another_server_invalidates_everything() {
        let mut marks = fenced(50);
        let snapshot = marks.snapshot(&[lane()]);
        marks.note_server(ServerId { connection: 1, started_us: 2, backend: 1 });
        marks.note_basis(marks.epoch(), BASIS);
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), LOWEST, "a late answer of the old server raised a mark");
        assert_eq!(marks.snapshot(&[lane()]).fenced, LOWEST);
    }

    #[test]
    fn a_row_reset_to_unsent_while_its_lane_is_claimed_is_not_hidden_again() {
        let mut marks = fenced(50);
        let snapshot = marks.snapshot(&[lane()]);
        marks.raise(&snapshot, BASIS, &[Coverage { first_open: Some(4), ..read_to_the_end() }]);
        assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 2)]), Swept::Reset, "one row was reset");
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), LOWEST);
    }

    #[test]
    fn another_file_of_the_table_invalidates_h_and_the_fence_too() {
        let mut marks = fenced(50);
        marks.note_ids(marks.epoch(), [90]);
        let snapshot = marks.snapshot(&[lane()]);
        let old = marks.epoch();
        marks.note_basis(old, BASIS + 1);
        assert_ne!(marks.epoch(), old, "results of older reads are ignored");
        assert_eq!((marks.highest_read(), marks.snapshot(&[lane()]).fenced), (LOWEST, LOWEST));
        marks.raise(&snapshot, BASIS + 1, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), LOWEST);
        let epoch = marks.epoch();
        marks.note_server(SERVER);
        assert_eq!(marks.epoch(), epoch, "the server is known");
    }

    #[test]
    fn rows_below_the_marks_of_two_lanes_or_twice_of_the_same_lane_invalidate_everything() {
        let other = Lane::new(6).unwrap();
        let raised = || {
            let mut marks = fenced(50);
            let snapshot = marks.snapshot(&[lane(), other]);
            marks.raise(
                &snapshot,
                BASIS,
                &[read_to_the_end(), Coverage { lane: other, ..read_to_the_end() }],
            );
            marks
        };
        let mut marks = raised();
        assert_eq!(sweep(&mut marks, &[lane(), other], &[(lane(), 3), (other, 50)]), Swept::Forgotten);
        assert_eq!((marks.low(lane()), marks.snapshot(&[]).fenced), (LOWEST, LOWEST));

        let mut marks = raised();
        let found = [(lane(), 3), (other, 51)];
        assert_eq!(sweep(&mut marks, &[lane(), other], &found), Swept::Reset, "one is above its mark");
        let snapshot = marks.snapshot(&[lane()]);
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 4)]), Swept::Forgotten);

        let mut marks = raised();
        assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 3)]), Swept::Reset);
        assert_eq!(sweep(&mut marks, &[lane()], &[]), Swept::Clean);
        let snapshot = marks.snapshot(&[lane()]);
        marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
        assert_eq!(
            sweep(&mut marks, &[lane()], &[(lane(), 4)]),
            Swept::Reset,
            "there was a clean sweep in between"
        );
    }
}
