//! How many lanes a statement covers, and which the scout scans next. After a timeout the next statement covers fewer.

use crate::{LANES, Lane};
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Statements that take less than this may cover twice as many lanes. It is less than half of the statement timeout, so
/// that the next one does not time out again.
const QUICK: Duration = Duration::from_secs(10);
/// How many quick statements in a row it takes until the next one covers twice as many lanes. One lane may be slower than
/// the others.
const QUICK_ONES: u32 = 4;
/// After this time without a timeout, one statement over fewer lanes is enough, if it would be quick over all of them. At low
/// rates, few lanes have work.
const QUICK_FOR: Duration = Duration::from_secs(300);

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

    pub(crate) fn worked(&self, lanes: usize, took: Duration) {
        if self.now.get() == self.most {
            return;
        }
        if lanes >= self.now.get() {
            self.quick_ones.set(if took < QUICK { self.quick_ones.get() + 1 } else { 0 });
        }
        let over_all = took.saturating_mul(LANES.div_ceil(lanes.max(1)) as u32);
        let quick_for_long = over_all < QUICK && self.changed_at.get().elapsed() >= QUICK_FOR;
        if self.quick_ones.get() == QUICK_ONES || quick_for_long {
            self.quick_ones.set(0);
            self.changed_at.set(Instant::now());
            self.now.set((self.now.get() * 2).min(self.most));
        }
    }
}

pub(crate) struct ScanOrder {
    width: Width,
    next: usize,
    /// Lanes found empty since the last scan that found rows.
    empty: [bool; LANES],
}

impl ScanOrder {
    pub(crate) fn new() -> ScanOrder {
        ScanOrder { width: Width::new(LANES), next: 0, empty: [false; LANES] }
    }

    /// Those of these lanes that the next scan covers. If it cannot cover all, they take turns.
    pub(crate) fn next_lanes(&mut self, mut lanes: Vec<Lane>) -> Vec<Lane> {
        if lanes.len() > self.width.get() {
            let first = lanes.iter().position(|lane| lane.index() >= self.next).unwrap_or(0);
            lanes.rotate_left(first);
            lanes.truncate(self.width.get());
            self.next = lanes.last().map_or(0, |lane| (lane.index() + 1) % LANES);
        }
        lanes
    }

    /// Records that a scan of these lanes timed out. Returns whether the next one covers fewer, beginning with the same ones.
    pub(crate) fn timed_out(&mut self, lanes: &[Lane]) -> bool {
        let narrower = self.width.timed_out(lanes.len());
        if narrower {
            self.next = lanes.first().map_or(0, |lane| lane.index());
        }
        narrower
    }

    pub(crate) fn note_duration(&self, lanes: &[Lane], took: Duration) {
        self.width.worked(lanes.len(), took);
    }

    /// Records that a scan found rows, or that a lane was not free.
    pub(crate) fn forget_empty(&mut self) {
        self.empty = [false; LANES];
    }

    /// Records that a scan found these lanes empty. Returns whether all 64 are.
    pub(crate) fn note_empty(&mut self, lanes: &[Lane]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

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

    fn all() -> Vec<Lane> {
        Lane::all().collect()
    }

    #[test]
    fn after_a_timeout_the_lanes_take_turns() {
        let mut scan_order = ScanOrder::new();
        assert_eq!(scan_order.next_lanes(all()).len(), LANES);
        assert!(scan_order.timed_out(&all()));
        let (first, second) = (scan_order.next_lanes(all()), scan_order.next_lanes(all()));
        assert_eq!((first.len(), second.len()), (32, 32));
        assert_eq!([first.clone(), second].concat(), all());
        assert_eq!(scan_order.next_lanes(all()), first, "and again from the first one");
    }

    #[test]
    fn a_scan_that_timed_out_is_repeated_with_fewer_lanes() {
        let mut scan_order = ScanOrder::new();
        scan_order.timed_out(&all());
        let half = scan_order.next_lanes(all());
        assert!(scan_order.timed_out(&half));
        assert_eq!(scan_order.next_lanes(all()), half[..16]);
        while scan_order.timed_out(&all()[..scan_order.width.get()]) {}
        let one = scan_order.next_lanes(all());
        assert!(!scan_order.timed_out(&one));
        assert_ne!(scan_order.next_lanes(all()), one, "one slow lane does not delay the others");
    }

    #[test]
    fn all_lanes_are_empty_when_each_was_empty_in_turn() {
        let mut scan_order = ScanOrder::new();
        assert!(scan_order.note_empty(&all()));
        assert!(!scan_order.note_empty(&all()[..32]));
        scan_order.forget_empty();
        assert!(!scan_order.note_empty(&all()[32..]));
        assert!(scan_order.note_empty(&all()[..32]));
    }
}
