//! Narrowing: finds a row that Postgres cannot read, and rejects it without reading its contents. Other rows are published.
//!
//! ```text
//!   lanes together ──fails──▶ each lane alone ──fails──▶ half of the rows, and so on ──fails──▶ the first row
//! ```
//!
//! The rows before the bad one are published meanwhile: a claim of fewer rows is still a contiguous prefix. When the bad
//! row is the first of its lane, the claim reads it without its contents and tries to read all of it once more, under the
//! lock of its lane. If Postgres refuses, the row becomes a dead letter or blocks its key. A row that cannot be moved as a
//! whole always blocks its key.
//!
//! After a timeout, reads cover fewer lanes, and settlements have fewer rows.

use crate::cycle::claim::PlannedRead;
use crate::lanes::{CLAIM_LANES_MAX, Width};
use crate::reason::UNREADABLE_ROW;
use crate::{
    Availability, Batch, Board, Claim, Coverage, Event, Fate, FaultKind, Head, LANES, Lane, OnRejected,
    PostgresFault, ReadEnd, Relay, topic,
};
use std::cell::RefCell;
use std::time::Duration;
use tokio::time::Instant;

/// How long a lane is set aside if narrowing made no progress.
const ASIDE: Duration = Duration::from_secs(5);
/// How long a lane is set aside if its first row turned out to be readable.
const READABLE_ASIDE: Duration = Duration::from_secs(1);

const ADVICE: &str = "The events of this lane wait; those of all other lanes are published. Check the server log for damaged \
     data, and restore or delete the row as described in docs/runbook.md under OutboxRelayKeysBlocked";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// All its rows can be read, as far as is known.
    #[default]
    Sound,
    /// A read of this lane together with others failed.
    Alone,
    /// This many of its first rows cannot be read together.
    Within(usize),
    First,
    /// Its first row cannot be moved to the dead letters either.
    Stays,
}

/// The lanes with rows that cannot be read, and how many lanes and rows a claim covers.
pub(crate) struct Narrowing {
    steps: RefCell<[Step; LANES]>,
    pub(super) width: Width,
    /// How many rows a settlement records.
    pub(super) rows: Width,
    pub(crate) outage: Availability,
}

#[derive(PartialEq, Eq)]
pub(crate) struct Before {
    steps: Vec<Step>,
    width: usize,
}

impl Narrowing {
    pub(crate) fn new() -> Narrowing {
        Narrowing {
            steps: RefCell::new([Step::Sound; LANES]),
            width: Width::new(CLAIM_LANES_MAX),
            rows: Width::new(usize::MAX),
            outage: Availability::new("lane", "read_failed").described("unreadable", "readable again"),
        }
    }

    /// The lanes for the next claim: a single lane that is not sound, or sound ones up to the width. Returns the rest to the
    /// board.
    pub(crate) fn first_of(&self, board: &Board, mut lanes: Vec<Lane>) -> Vec<Lane> {
        let sound = lanes.iter().take_while(|lane| self.is_sound(**lane)).count();
        let rest = lanes.split_off(sound.max(1).min(self.width.get()).min(lanes.len()));
        give_back_first(board, &rest);
        lanes
    }

    /// Whether all lanes may be claimed together.
    pub(crate) fn allows_all(&self) -> bool {
        self.width.get() >= CLAIM_LANES_MAX && self.steps.borrow().iter().all(|step| *step == Step::Sound)
    }

    /// Whether the read of these lanes has to wait for the claim, as for lanes with a backlog.
    pub(crate) fn claims_first(&self, lanes: &[Lane]) -> bool {
        lanes.iter().any(|lane| !self.is_sound(*lane))
    }

    /// The maximum number of rows to read from these lanes together.
    pub(crate) fn rows_max(&self, lanes: &[Lane], rows_max: usize) -> usize {
        let rows_max = rows_max.min(self.rows.get());
        if let [lane] = lanes
            && let Step::Within(rows) = self.step(*lane)
        {
            return (rows / 2).clamp(1, rows_max);
        }
        rows_max
    }

    /// Whether to read the first row of this lane without its contents.
    pub(crate) fn reads_head(&self, lanes: &[Lane]) -> bool {
        matches!(lanes, [lane] if matches!(self.step(*lane), Step::First | Step::Stays))
    }

    pub(crate) fn on_rejected(&self, lanes: &[Lane], on_rejected: OnRejected) -> OnRejected {
        let stays = matches!(lanes, [lane] if self.step(*lane) == Step::Stays);
        if stays { OnRejected::BlockKey } else { on_rejected }
    }

    pub(crate) fn before(&self, lanes: &[Lane]) -> Before {
        Before { steps: lanes.iter().map(|lane| self.step(*lane)).collect(), width: self.width.get() }
    }

    pub(crate) fn read_failed(&self, lanes: &[Lane], rows: usize, fault: &PostgresFault) {
        match (fault.kind, lanes) {
            (FaultKind::TimedOut, _) => _ = self.width.timed_out(lanes.len().min(CLAIM_LANES_MAX)),
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

    /// Records that the settlement of this many rows failed. If it was that of an unreadable row, the row has to stay. If it took too
    /// long, such as that of many large dead letters, the next ones have fewer rows.
    pub(crate) fn settlement_failed(&self, lanes: &[Lane], rows: usize, fault: &PostgresFault) {
        match (fault.kind, lanes) {
            (FaultKind::Data, [lane]) if self.step(*lane) == Step::First => self.set(*lane, Step::Stays),
            (FaultKind::TimedOut, _) => _ = self.rows.timed_out(rows),
            _ => {}
        }
    }

    /// Records a settled claim whose lanes are back on the board. Its rows are readable, so the search continues after them.
    pub(crate) fn settled(&self, board: &Board, coverage: &[Coverage]) {
        for coverage in coverage {
            if self.reads_head(&[coverage.lane]) && coverage.cut && coverage.last_read.is_none() {
                // The read of the lane failed, but its first row can be read alone. Wait before the next attempt.
                board.set_aside(coverage.lane, Instant::now() + READABLE_ASIDE);
            }
            let next = match self.step(coverage.lane) {
                Step::Within(rows) if coverage.cut && rows > 1 => match coverage.first_open {
                    None => Step::Within(rows - rows / 2),
                    Some(_) => Step::Within(rows),
                },
                _ => Step::Sound,
            };
            self.set(coverage.lane, next);
        }
    }

    /// Handles unreadable rows, and timeouts after which claims cover fewer lanes. Gives the lanes back to the board. Returns
    /// false for any other fault, which the caller has to handle.
    pub(crate) fn handles(
        &self,
        board: &Board,
        lanes: &[Lane],
        before: &Before,
        fault: &PostgresFault,
    ) -> bool {
        if !matches!(fault.kind, FaultKind::Data | FaultKind::TimedOut) {
            return false;
        }
        if *before != self.before(lanes) {
            tracing::debug!("{fault}; reading fewer rows to find the cause");
            give_back_first(board, lanes);
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

    /// Records a scan of these lanes. Where it found no unsent row, the unreadable one is gone.
    pub(crate) fn scanned(&self, lanes: &[Lane], first_unsent: &[(Lane, i64)]) {
        for lane in lanes.iter().filter(|lane| !self.is_sound(**lane)) {
            if first_unsent.iter().all(|(with_work, _)| with_work != lane) {
                self.set(*lane, Step::Sound);
            }
        }
    }

    fn is_sound(&self, lane: Lane) -> bool {
        self.step(lane) == Step::Sound
    }

    fn step(&self, lane: Lane) -> Step {
        self.steps.borrow()[lane.index()]
    }

    fn set(&self, lane: Lane, step: Step) {
        self.steps.borrow_mut()[lane.index()] = step;
        if step == Step::Sound {
            self.outage.worked(lane.index());
        }
    }
}

fn give_back_first(board: &Board, lanes: &[Lane]) {
    if !lanes.is_empty() {
        let unread: Vec<Coverage> = lanes.iter().copied().map(Coverage::unread).collect();
        board.give_back(lanes, &unread);
    }
}

/// Reads the first row of the lane without its contents. If Postgres cannot read all of it, the batch consists of this row,
/// rejected.
pub(super) async fn read_head<C: Claim, P>(
    relay: &Relay<P>,
    claim: &mut C,
    planned: &PlannedRead,
    batch: &mut Batch<C::Event>,
) -> Result<(), PostgresFault> {
    let generation = planned.marks.generation;
    let Head { hold_version, epoch, row, error } = claim.head(&planned.read).await?;
    (batch.hold_version, batch.epoch) = (hold_version, epoch);
    relay.lanes.marks.borrow_mut().note_epoch(generation, epoch);
    match (row, error) {
        (None, _) => _ = batch.appended(ReadEnd::Complete),
        // The row was restored, or another row is the first one now. The next read is a normal one.
        (Some(_), None) => _ = batch.appended(ReadEnd::Cut),
        (Some(row), Some(error)) => {
            relay.lanes.marks.borrow_mut().note_ids(generation, [row.id()]);
            batch.rows_mut().push(row);
            let index = batch.appended(ReadEnd::Cut);
            relay.memory.mark_acknowledged(batch, index);
            if batch.fate(index) == Fate::Open {
                let topic = topic::name(&relay.kafka.topics, &batch.rows()[index]);
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

    fn fault(kind: FaultKind) -> PostgresFault {
        PostgresFault { kind, doing: "testing", message: String::new() }
    }

    /// Reads a lane until its row `bad`, which cannot be read, is the first one. Returns how many reads that took.
    fn reads_until_found(bad: usize) -> usize {
        let (narrowing, board, lane) = (Narrowing::new(), Board::default(), lanes(3..4)[0]);
        let (mut first, mut reads) = (0, 0);
        while !narrowing.reads_head(&[lane]) {
            let rows = narrowing.rows_max(&[lane], BATCH);
            reads += 1;
            if (first..first + rows).contains(&bad) {
                narrowing.read_failed(&[lane], rows, &fault(FaultKind::Data));
            } else {
                first += rows;
                let last_read = Some(first as i64);
                narrowing.settled(
                    &board,
                    &[Coverage { lane, last_read, first_open: None, cut: true, used_share: false }],
                );
            }
        }
        assert_eq!(first, bad, "it is the first row of its lane");
        reads
    }

    #[test]
    fn a_bad_row_is_found_by_halving() {
        for bad in [0, 1, 2, 37, 499, 500, 501, 998, 999, 1_000, 5_432] {
            let reads = reads_until_found(bad);
            assert!(reads <= bad / BATCH + 12, "{reads} reads for row {bad}");
        }
    }

    #[test]
    fn after_a_failed_read_its_lanes_are_claimed_one_at_a_time() {
        let (narrowing, board) = (Narrowing::new(), Board::default());
        assert_eq!(narrowing.first_of(&board, lanes(0..8)), lanes(0..8));
        narrowing.read_failed(&lanes(2..4), BATCH, &fault(FaultKind::Data));
        assert_eq!(narrowing.first_of(&board, lanes(0..8)), lanes(0..2));
        assert_eq!(narrowing.first_of(&board, lanes(2..8)), lanes(2..3));
        assert_eq!(narrowing.first_of(&board, lanes(4..8)), lanes(4..8), "others are claimed together");
    }

    /// For example, an operator deletes the unreadable row, or another relay has published the others.
    #[test]
    fn lanes_that_a_scan_finds_empty_are_claimed_together_again() {
        let (narrowing, board) = (Narrowing::new(), Board::default());
        narrowing.read_failed(&lanes(2..4), BATCH, &fault(FaultKind::Data));
        narrowing.read_failed(&lanes(3..4), 1, &fault(FaultKind::Data));
        assert!(!narrowing.allows_all());
        narrowing.scanned(&lanes(2..4), &[(lanes(3..4)[0], 7)]);
        assert!(!narrowing.allows_all(), "one of them still has rows");
        narrowing.scanned(&lanes(2..4), &[]);
        assert!(narrowing.allows_all());
        assert_eq!(narrowing.first_of(&board, lanes(0..8)), lanes(0..8));
    }

    #[test]
    fn a_fault_that_is_not_about_data_narrows_nothing() {
        let (narrowing, board, two) = (Narrowing::new(), Board::default(), lanes(0..2));
        for kind in [FaultKind::Unavailable, FaultKind::Contended, FaultKind::Refused] {
            let before = narrowing.before(&two);
            narrowing.read_failed(&two, BATCH, &fault(kind));
            assert!(!narrowing.handles(&board, &two, &before, &fault(kind)), "{kind:?}");
            assert_eq!(narrowing.first_of(&board, two.clone()), two);
        }
    }

    /// Otherwise the settlement of thousands of large dead letters would time out for ever.
    #[tokio::test(start_paused = true)]
    async fn after_a_settlement_that_took_too_long_claims_have_fewer_rows() {
        let (narrowing, lane) = (Narrowing::new(), lanes(0..1));
        let rows_max = || narrowing.rows_max(&lane, BATCH);
        for rows in [BATCH, BATCH / 2] {
            narrowing.settlement_failed(&lane, rows, &fault(FaultKind::TimedOut));
            assert_eq!(rows_max(), rows / 2);
        }
        for _ in 0..4 {
            assert_eq!(rows_max(), BATCH / 4);
            narrowing.rows.worked(BATCH / 4, Duration::from_millis(1));
        }
        assert_eq!(rows_max(), BATCH / 2);
        narrowing.settlement_failed(&lane, 1, &fault(FaultKind::TimedOut));
        assert_eq!(rows_max(), 1);
        tokio::time::advance(Duration::from_secs(300)).await;
        narrowing.rows.worked(0, Duration::ZERO);
        assert_eq!(rows_max(), 1, "a claim that records nothing shows nothing");
        narrowing.rows.worked(1, Duration::from_millis(1));
        assert_eq!(rows_max(), 2);
    }

    #[test]
    fn a_row_that_cannot_be_moved_blocks_its_key() {
        let (narrowing, lane) = (Narrowing::new(), lanes(5..6));
        narrowing.read_failed(&lane, 1, &fault(FaultKind::Data));
        assert_eq!(narrowing.on_rejected(&lane, OnRejected::DeadLetter), OnRejected::DeadLetter);
        narrowing.settlement_failed(&lane, 1, &fault(FaultKind::Contended));
        assert_eq!(narrowing.on_rejected(&lane, OnRejected::DeadLetter), OnRejected::DeadLetter);
        narrowing.settlement_failed(&lane, 1, &fault(FaultKind::Data));
        assert_eq!(narrowing.on_rejected(&lane, OnRejected::DeadLetter), OnRejected::BlockKey);
    }
}
