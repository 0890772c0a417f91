//! Which lanes the scout scans next. One statement covers all of them, unless that takes too long.

use crate::relay::lane::{LANES, Lane};
use crate::relay::lanes::width::Width;
use std::time::Duration;

/// The order in which the scout scans the lanes.
pub(crate) struct Looking {
    width: Width,
    /// The lane with which the next scan begins.
    next: usize,
    /// Lanes found empty since the last scan that found rows.
    empty: [bool; LANES],
}

impl Looking {
    pub(crate) fn new() -> Looking {
        Looking { width: Width::new(LANES), next: 0, empty: [false; LANES] }
    }

    /// Those of these lanes that the next scan covers. If it cannot cover all, they take turns.
    pub(crate) fn part_of(&mut self, mut lanes: Vec<Lane>) -> Vec<Lane> {
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
    pub(crate) fn took(&self, lanes: &[Lane], took: Duration) {
        self.width.worked(lanes.len(), took);
    }

    /// Records that a scan found rows, or that a lane was not free.
    pub(crate) fn saw_something(&mut self) {
        self.empty = [false; LANES];
    }

    /// Records that a scan found these lanes empty. Returns whether all 64 are.
    pub(crate) fn saw_nothing(&mut self, lanes: &[Lane]) -> bool {
        for lane in lanes {
            self.empty[lane.index()] = true;
        }
        let everywhere = self.empty.iter().all(|empty| *empty);
        if everywhere {
            self.saw_something();
        }
        everywhere
    }
}

impl Default for Looking {
    fn default() -> Self {
        Looking::new()
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
        let mut looking = Looking::new();
        assert_eq!(looking.part_of(all()).len(), LANES);
        assert!(looking.timed_out(&all()));
        let (first, second) = (looking.part_of(all()), looking.part_of(all()));
        assert_eq!((first.len(), second.len()), (32, 32));
        assert_eq!([first.clone(), second].concat(), all());
        assert_eq!(looking.part_of(all()), first, "and again from the first one");
    }

    #[test]
    fn a_scan_that_timed_out_is_repeated_with_fewer_lanes() {
        let mut looking = Looking::new();
        looking.timed_out(&all());
        let half = looking.part_of(all());
        assert!(looking.timed_out(&half));
        assert_eq!(looking.part_of(all()), half[..16]);
        while looking.timed_out(&all()[..looking.width.get()]) {}
        let one = looking.part_of(all());
        assert!(!looking.timed_out(&one));
        assert_ne!(looking.part_of(all()), one, "one slow lane does not delay the others");
    }

    #[test]
    fn all_lanes_are_empty_when_each_was_empty_in_turn() {
        let mut looking = Looking::new();
        assert!(looking.saw_nothing(&all()));
        assert!(!looking.saw_nothing(&all()[..32]));
        looking.saw_something();
        assert!(!looking.saw_nothing(&all()[32..]));
        assert!(looking.saw_nothing(&all()[..32]));
    }
}
