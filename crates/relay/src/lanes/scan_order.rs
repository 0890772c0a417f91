//! Which lanes the scout scans next. One statement covers all of them, unless that takes too long.

use crate::lane::{LANES, Lane};
use crate::lanes::width::Width;
use std::time::Duration;

/// The order in which the scout scans the lanes.
pub(crate) struct ScanOrder {
    width: Width,
    /// The lane with which the next scan begins.
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

    /// Records how long a scan of these lanes took.
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
