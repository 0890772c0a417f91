//! Narrowing: a row that Postgres cannot read is found, and decided about without its contents. Everything else goes on.
//!
//! ```text
//!   lanes together ──fails──▶ each lane alone ──fails──▶ half of the rows, and so on ──fails──▶ the first row
//! ```
//!
//! The rows before the bad one are published on the way: fewer rows cut a claim off at its end, so it stays a contiguous
//! prefix. When the bad row is the first of its lane, the claim looks at it without its contents and tries to read it once
//! more, under the lock of its lane. If Postgres refuses, the row becomes a dead letter, or stays and blocks its key. A row
//! that cannot be moved whole always stays.

use crate::config::OnRejected;
use crate::relay::Relay;
use crate::relay::cycle::claim::PlannedRead;
use crate::relay::event::Event;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::outage::Outage;
use crate::relay::lane::{LANES, Lane};
use crate::relay::lanes::board::{Again, Board};
use crate::relay::lanes::width::Width;
use crate::relay::outbox::{Claim, End, Head};
use crate::relay::reason::UNREADABLE_ROW;
use crate::relay::rows::Fate;
use crate::relay::rows::batch::Batch;
use crate::relay::rows::reach::Reach;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::time::Instant;

/// At most this many lanes a claim.
const LANES_MAX: usize = 16;
/// A lane with which nothing can be done for now is tried again after this.
const ASIDE: Duration = Duration::from_secs(5);
/// A lane whose first row turned out to be readable is read again after this.
const AGAIN: Duration = Duration::from_secs(1);

const ADVICE: &str = "All other events are published. Check the server log for damaged data, and restore or delete \
     the row as described in docs/runbook.md under OutboxRelayKeysBlocked";

/// What is known of a lane whose rows cannot all be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// Nothing.
    #[default]
    Sound,
    /// A read of it and of other lanes failed.
    Alone,
    /// So many of its first rows cannot be read together.
    Within(usize),
    /// Its first row cannot be read.
    First,
    /// Its first row cannot be moved to the dead letters either.
    Stays,
}

/// Which lanes have rows that cannot be read, and how many lanes a claim covers.
pub struct Narrowing {
    steps: RefCell<[Step; LANES]>,
    /// How many lanes are not sound.
    narrowed: Cell<usize>,
    width: Width,
    outage: Outage,
}

/// How far lanes were narrowed down before a cycle.
#[derive(PartialEq, Eq)]
pub struct Before {
    steps: Vec<Step>,
    width: usize,
}

impl Narrowing {
    /// Everything can be read.
    pub fn new() -> Narrowing {
        Narrowing {
            steps: RefCell::new([Step::Sound; LANES]),
            narrowed: Cell::new(0),
            width: Width::new(LANES_MAX),
            outage: Outage::new("unreadable events"),
        }
    }

    /// Which of these lanes a claim covers: a lane that is not sound alone, the others up to the width. The rest goes back to
    /// the board.
    pub fn first_of(&self, board: &Board, mut lanes: Vec<Lane>) -> Vec<Lane> {
        let sound = lanes.iter().take_while(|lane| self.is_sound(**lane)).count();
        let rest = lanes.split_off(sound.max(1).min(self.width.get()).min(lanes.len()));
        give_back_in_front(board, &rest);
        lanes
    }

    /// Whether these lanes are claimed first and read after that, as those with a backlog are.
    pub fn claims_apart(&self, lanes: &[Lane]) -> bool {
        lanes.iter().any(|lane| !self.is_sound(*lane))
    }

    /// How many rows to read of these lanes together.
    pub fn rows_max(&self, lanes: &[Lane], rows_max: usize) -> usize {
        match lanes {
            [lane] => match self.step(*lane) {
                Step::Within(rows) => (rows / 2).clamp(1, rows_max),
                _ => rows_max,
            },
            _ => rows_max,
        }
    }

    /// The lane, if its first row is to be looked at without its contents.
    pub fn looks_at_first(&self, lanes: &[Lane]) -> bool {
        matches!(lanes, [lane] if matches!(self.step(*lane), Step::First | Step::Stays))
    }

    /// What happens to a row of these lanes that can never become a record.
    pub fn on_rejected(&self, lanes: &[Lane], on_rejected: OnRejected) -> OnRejected {
        let stays = matches!(lanes, [lane] if self.step(*lane) == Step::Stays);
        if stays { OnRejected::BlockKey } else { on_rejected }
    }

    /// Remembers how far these lanes are narrowed down.
    pub fn before(&self, lanes: &[Lane]) -> Before {
        Before { steps: lanes.iter().map(|lane| self.step(*lane)).collect(), width: self.width.get() }
    }

    /// A read of up to `rows` rows of these lanes failed.
    pub fn read_failed(&self, lanes: &[Lane], rows: usize, fault: &Fault) {
        match (fault.kind, lanes) {
            (FaultKind::TimedOut, _) => _ = self.width.timed_out(lanes.len()),
            (FaultKind::Data, [lane]) => {
                self.set(*lane, if rows > 1 { Step::Within(rows) } else { Step::First });
            }
            (FaultKind::Data, _) => {
                for lane in lanes.iter().filter(|lane| self.is_sound(**lane)) {
                    self.set(*lane, Step::Alone);
                }
            }
            _ => {}
        }
    }

    /// A read of so many lanes took this long.
    pub fn read_took(&self, lanes: usize, took: Duration) {
        self.width.worked(lanes, took);
    }

    /// The settlement of a claim of these lanes failed. If it was that of a row that cannot be read, that row stays.
    pub fn settlement_failed(&self, lanes: &[Lane], fault: &Fault) {
        if let ([lane], FaultKind::Data) = (lanes, fault.kind)
            && self.step(*lane) == Step::First
        {
            self.set(*lane, Step::Stays);
        }
    }

    /// A claim of these lanes was settled, and they are back on the board: rows that were read are no longer suspected.
    pub fn settled(&self, board: &Board, reach: &[Reach]) {
        if self.narrowed.get() == 0 {
            return;
        }
        for reach in reach {
            if self.looks_at_first(&[reach.lane]) && reach.cut && reach.last_read.is_none() {
                // The read of the lane failed, and its first row can be read alone: not again at once.
                board.set_aside(reach.lane, Instant::now() + AGAIN);
            }
            let next = match self.step(reach.lane) {
                Step::Within(rows) if reach.cut && rows > 1 => match reach.first_open {
                    None => Step::Within(rows - rows / 2),
                    Some(_) => Step::Within(rows),
                },
                _ => Step::Sound,
            };
            self.set(reach.lane, next);
        }
    }

    /// After a fault. Returns false if it is not a matter of rows that cannot be read: the caller waits then. Else the lanes
    /// go back to the board.
    pub fn takes(&self, board: &Board, lanes: &[Lane], before: &Before, fault: &Fault) -> bool {
        if !matches!(fault.kind, FaultKind::Data | FaultKind::TimedOut) {
            return false;
        }
        if *before != self.before(lanes) {
            tracing::debug!("searching for the unreadable row: {fault}");
            give_back_in_front(board, lanes);
            return true;
        }
        match (lanes, fault.kind) {
            ([lane], FaultKind::Data) if !self.is_sound(*lane) => {
                self.outage.failed(lane.index(), fault, ADVICE);
                board.give_back(lanes, &[]);
                board.set_aside(*lane, Instant::now() + ASIDE);
                true
            }
            _ => false,
        }
    }

    fn is_sound(&self, lane: Lane) -> bool {
        self.step(lane) == Step::Sound
    }

    fn step(&self, lane: Lane) -> Step {
        self.steps.borrow()[lane.index()]
    }

    fn set(&self, lane: Lane, step: Step) {
        let before = std::mem::replace(&mut self.steps.borrow_mut()[lane.index()], step);
        let (was, is) = (before != Step::Sound, step != Step::Sound);
        self.narrowed.set(self.narrowed.get() + usize::from(is) - usize::from(was));
        if !is {
            self.outage.worked(lane.index());
        }
    }
}

impl Default for Narrowing {
    fn default() -> Self {
        Narrowing::new()
    }
}

fn give_back_in_front(board: &Board, lanes: &[Lane]) {
    if lanes.is_empty() {
        return;
    }
    let again: Vec<Again> = lanes.iter().map(|&lane| Again { lane, front: true, hungry: false }).collect();
    board.give_back(lanes, &again);
}

/// Looks at the first row of the lane without its contents. If Postgres refuses to read it whole, it is all that the batch
/// holds, with the verdict.
pub(super) async fn look_at_first<C: Claim, P>(
    relay: &Relay<P>,
    claim: &mut C,
    planned: &PlannedRead,
    batch: &mut Batch<C::Event>,
) -> Result<(), Fault> {
    let epoch = planned.start.epoch();
    batch.ask(&planned.read.shares);
    let Head { hold_version, basis, row, refusal } = claim.head(&planned.read).await?;
    batch.read_under(hold_version, basis);
    relay.marks.borrow_mut().saw_basis(epoch, basis);
    match (row, refusal) {
        (None, _) => _ = batch.grown(End::Complete),
        // It was restored, or another row is the first one by now. It is read like any other next time.
        (Some(_), None) => _ = batch.grown(End::Cut),
        (Some(row), Some(error)) => {
            relay.marks.borrow_mut().saw_id(epoch, row.id());
            batch.rows_mut().push(row);
            let index = batch.grown(End::Cut);
            relay.rows.recognise(batch, index);
            if batch.fate(index) == Fate::Open {
                let topic =
                    relay.template.topic(&String::from_utf8_lossy(batch.rows()[index].aggregate_type()));
                batch.rejected(index, &topic, UNREADABLE_ROW.rejection(error));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 1_000;

    fn lanes(numbers: std::ops::Range<i64>) -> Vec<Lane> {
        numbers.filter_map(Lane::new).collect()
    }

    fn fault(kind: FaultKind) -> Fault {
        Fault { kind, doing: "testing", message: String::new() }
    }

    /// Reads a lane until its row `bad`, which cannot be read, is the first one. Returns how many reads that took.
    fn reads_until_found(bad: usize) -> usize {
        let (narrowing, board, lane) = (Narrowing::new(), Board::new(), lanes(3..4)[0]);
        let (mut first, mut reads) = (0, 0);
        while !narrowing.looks_at_first(&[lane]) {
            let rows = narrowing.rows_max(&[lane], BATCH);
            reads += 1;
            if (first..first + rows).contains(&bad) {
                narrowing.read_failed(&[lane], rows, &fault(FaultKind::Data));
            } else {
                first += rows;
                let last_read = Some(first as i64);
                narrowing.settled(
                    &board,
                    &[Reach { lane, last_read, first_open: None, cut: true, hungry: false }],
                );
            }
        }
        assert_eq!(first, bad, "it is the first row of its lane");
        reads
    }

    #[test]
    fn a_bad_row_is_found_by_halves() {
        for bad in [0, 1, 2, 37, 499, 500, 501, 998, 999, 1_000, 5_432] {
            let reads = reads_until_found(bad);
            assert!(reads <= bad / BATCH + 12, "{reads} reads for row {bad}");
        }
    }

    #[test]
    fn after_a_failed_read_its_lanes_are_claimed_one_at_a_time() {
        let (narrowing, board) = (Narrowing::new(), Board::new());
        assert_eq!(narrowing.first_of(&board, lanes(0..8)), lanes(0..8));
        narrowing.read_failed(&lanes(2..4), BATCH, &fault(FaultKind::Data));
        assert_eq!(narrowing.first_of(&board, lanes(0..8)), lanes(0..2));
        assert_eq!(narrowing.first_of(&board, lanes(2..8)), lanes(2..3));
        assert_eq!(narrowing.first_of(&board, lanes(4..8)), lanes(4..8), "others are claimed together");
    }

    #[test]
    fn a_fault_that_is_not_about_data_narrows_nothing_down() {
        let (narrowing, board, two) = (Narrowing::new(), Board::new(), lanes(0..2));
        for kind in [FaultKind::Unavailable, FaultKind::Contended, FaultKind::Refused] {
            let before = narrowing.before(&two);
            narrowing.read_failed(&two, BATCH, &fault(kind));
            assert!(!narrowing.takes(&board, &two, &before, &fault(kind)), "{kind:?}");
            assert_eq!(narrowing.first_of(&board, two.clone()), two);
        }
    }

    #[test]
    fn a_row_that_cannot_be_moved_blocks_its_key() {
        let (narrowing, lane) = (Narrowing::new(), lanes(5..6));
        narrowing.read_failed(&lane, 1, &fault(FaultKind::Data));
        assert_eq!(narrowing.on_rejected(&lane, OnRejected::DeadLetter), OnRejected::DeadLetter);
        narrowing.settlement_failed(&lane, &fault(FaultKind::Contended));
        assert_eq!(narrowing.on_rejected(&lane, OnRejected::DeadLetter), OnRejected::DeadLetter);
        narrowing.settlement_failed(&lane, &fault(FaultKind::Data));
        assert_eq!(narrowing.on_rejected(&lane, OnRejected::DeadLetter), OnRejected::BlockKey);
    }
}
