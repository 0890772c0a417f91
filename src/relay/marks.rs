//! The low-water marks: below them a lane has no unsent row, so the claim does not walk the index entries of rows that
//! were sent and that vacuum cannot remove yet.
//!
//! A mark is raised only in this order, of which no step can be left out (ARCHITECTURE.md, "Low-water mark"):
//!
//! 1. note H, the highest id seen, then list the transactions that hold RowExclusiveLock on the outbox;
//! 2. all of them have ended ([`super::fence`]): a writer takes the lock before it draws an id, so nobody can commit
//!    an id <= H any more;
//! 3. only then a read is sent ([`Marks::start`]);
//! 4. its rows are settled and the COMMIT is confirmed ([`Marks::raise`]).

use super::batch::Reach;
use super::fence::Fence;
use super::lane::{LANES, Lane};
use super::outbox::ServerId;
use std::collections::HashSet;

/// Where a lane without a mark is read from.
pub const LOWEST: i64 = i64::MIN;

/// How many backends behind a pooler are remembered before all are forgotten, and with them the marks.
const SERVERS_MAX: usize = 1_000;

/// The marks of all lanes, in memory only: a restart begins without any.
pub struct Marks {
    epoch: u64,
    servers: HashSet<ServerId>,
    hold_version: i64,
    low: [i64; LANES],
    resets: [u32; LANES],
    highest_seen: i64,
    fence: Fence,
}

/// What a read started with: what it says later counts only for that.
#[derive(Clone, Debug)]
pub struct Start {
    epoch: u64,
    fenced: i64,
    resets: Vec<u32>,
    /// One for each lane, in the order asked for.
    pub lows: Vec<i64>,
    /// The set of holds under which `lows` is valid.
    pub hold_version: i64,
}

impl Start {
    /// Which life of the marks this read belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The part of it that is about `some` of the `lanes` it was asked for, which come in the same order.
    pub fn only(mut self, lanes: &[Lane], some: &[Lane]) -> Start {
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
        Marks {
            epoch: 0,
            servers: HashSet::new(),
            hold_version: -1,
            low: [LOWEST; LANES],
            resets: [0; LANES],
            highest_seen: LOWEST,
            fence: Fence::new(),
        }
    }

    /// Forgets everything: the server may have lost commits, and then issues their ids again.
    pub fn forget(&mut self) {
        *self = Marks { epoch: self.epoch + 1, ..Marks::new() };
    }

    /// Forgets everything if this server, or this backend behind a pooler, has not been seen before.
    pub fn meet(&mut self, server: ServerId) {
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

    /// Changes with every [`Marks::forget`]. An answer to a question of an older epoch says nothing.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What a read that is about to be sent starts with.
    pub fn start(&self, lanes: &[Lane]) -> Start {
        Start {
            epoch: self.epoch,
            fenced: self.fence.passed(),
            resets: lanes.iter().map(|lane| self.resets[lane.index()]).collect(),
            lows: lanes.iter().map(|lane| self.low[lane.index()]).collect(),
            hold_version: self.hold_version,
        }
    }

    /// The set of holds that a read of `epoch` saw. Another set than before makes every mark invalid, for a mark also
    /// passes the rows of held topics.
    pub fn saw_holds(&mut self, epoch: u64, version: i64) {
        if epoch == self.epoch && version != self.hold_version {
            self.hold_version = version;
            self.low = [LOWEST; LANES];
        }
    }

    /// A read of `epoch` saw this id.
    pub fn saw_id(&mut self, epoch: u64, id: i64) {
        if epoch == self.epoch {
            self.highest_seen = self.highest_seen.max(id);
        }
    }

    /// The highest id seen: the H of the next fence.
    pub fn highest_seen(&self) -> i64 {
        self.highest_seen
    }

    /// The fence, for the one who asks the server about transactions.
    pub fn fence(&mut self) -> &mut Fence {
        &mut self.fence
    }

    /// The lane has an unsent row below its mark, which somebody has put back.
    pub fn reset(&mut self, lane: Lane) {
        self.low[lane.index()] = LOWEST;
        self.resets[lane.index()] += 1;
    }

    /// The lane's mark.
    pub fn low(&self, lane: Lane) -> i64 {
        self.low[lane.index()]
    }

    /// The COMMIT of a batch is confirmed, and it recorded every row but those that `reach` names as open.
    /// `hold_version` is the set of holds that the read saw.
    pub fn raise(&mut self, start: &Start, hold_version: i64, reach: &[Reach]) {
        if start.epoch != self.epoch || hold_version != self.hold_version {
            return;
        }
        for (reach, resets) in reach.iter().zip(&start.resets) {
            let lane = reach.lane.index();
            let Some(covers_to) = reach.covers_to() else { continue };
            if self.resets[lane] == *resets {
                let before_first_open = reach.first_open.map_or(i64::MAX, |id| id - 1);
                let raised = start.fenced.min(covers_to).min(before_first_open);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId { connection: 1, started_us: 1, backend: 1 };

    fn lane() -> Lane {
        Lane::new(5).unwrap()
    }

    fn fenced(high: i64) -> Marks {
        let mut marks = Marks::new();
        marks.meet(SERVER);
        marks.saw_holds(marks.epoch(), 1);
        marks.fence().begin(high, []);
        marks
    }

    fn read_to_the_end() -> Reach {
        Reach { lane: lane(), last_read: Some(90), first_open: None, cut: false, hungry: false }
    }

    #[test]
    fn a_mark_rises_to_the_fence_and_no_further() {
        let mut marks = fenced(50);
        let start = marks.start(&[lane()]);
        marks.raise(&start, 1, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), 50);
    }

    #[test]
    fn a_mark_stays_below_the_first_open_row_and_at_the_cut() {
        let mut marks = fenced(50);
        let start = marks.start(&[lane()]);
        marks.raise(&start, 1, &[Reach { first_open: Some(31), ..read_to_the_end() }]);
        assert_eq!(marks.low(lane()), 30);
        marks.raise(&start, 1, &[Reach { cut: true, last_read: Some(40), ..read_to_the_end() }]);
        assert_eq!(marks.low(lane()), 40);
    }

    #[test]
    fn a_read_that_was_sent_before_the_fence_passed_raises_nothing() {
        let mut marks = fenced(50);
        marks.fence().begin(80, ["3/1".to_owned()]);
        let start = marks.start(&[lane()]);
        marks.fence().look([]);
        marks.raise(&start, 1, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), 50, "the read began under the older fence");
    }

    #[test]
    fn a_changed_set_of_holds_makes_every_mark_invalid() {
        let mut marks = fenced(50);
        let start = marks.start(&[lane()]);
        marks.raise(&start, 1, &[read_to_the_end()]);
        marks.saw_holds(marks.epoch(), 2);
        assert_eq!(marks.low(lane()), LOWEST);
        marks.raise(&start, 1, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), LOWEST, "a read under the older set of holds says nothing");
    }

    #[test]
    fn another_server_makes_everything_invalid() {
        let mut marks = fenced(50);
        let start = marks.start(&[lane()]);
        marks.meet(ServerId { connection: 1, started_us: 2, backend: 1 });
        marks.saw_holds(marks.epoch(), 1);
        marks.raise(&start, 1, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), LOWEST, "a late answer of the old server raised a mark");
        assert_eq!(marks.start(&[lane()]).fenced, LOWEST);
    }

    #[test]
    fn a_row_put_back_while_its_lane_is_claimed_is_not_hidden_again() {
        let mut marks = fenced(50);
        let start = marks.start(&[lane()]);
        marks.reset(lane());
        marks.raise(&start, 1, &[read_to_the_end()]);
        assert_eq!(marks.low(lane()), LOWEST);
    }
}
