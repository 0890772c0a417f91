//! Which lanes the scout asks about next. One statement covers all of them, unless that takes too long.

use crate::relay::lane::{LANES, Lane};
use crate::relay::lanes::width::Width;
use std::time::Duration;

/// The scout's way through the lanes.
pub(crate) struct Looking {
    width: Width,
    /// The lane from which the next look goes on.
    next: usize,
    /// Lanes in which nothing was seen since the last look that saw something.
    empty: [bool; LANES],
}

impl Looking {
    /// All lanes at once.
    pub(crate) fn new() -> Looking {
        Looking { width: Width::new(LANES), next: 0, empty: [false; LANES] }
    }

    /// Those of these lanes that the next look covers: if not all, they take turns.
    pub(crate) fn part_of(&mut self, mut lanes: Vec<Lane>) -> Vec<Lane> {
        if lanes.len() > self.width.get() {
            let first = lanes.iter().position(|lane| lane.index() >= self.next).unwrap_or(0);
            lanes.rotate_left(first);
            lanes.truncate(self.width.get());
            self.next = lanes.last().map_or(0, |lane| (lane.index() + 1) % LANES);
        }
        lanes
    }

    /// A look at these lanes ran into the statement timeout. Returns whether the next one covers fewer, beginning with the
    /// same ones.
    pub(crate) fn timed_out(&mut self, lanes: &[Lane]) -> bool {
        let narrower = self.width.timed_out(lanes.len());
        if narrower {
            self.next = lanes.first().map_or(0, |lane| lane.index());
        }
        narrower
    }

    /// A look at these lanes took this long.
    pub(crate) fn took(&self, lanes: &[Lane], took: Duration) {
        self.width.worked(lanes.len(), took);
    }

    /// A look saw something, or was not about lanes that are all free.
    pub(crate) fn saw_something(&mut self) {
        self.empty = [false; LANES];
    }

    /// A look saw nothing in these lanes. Returns whether that is so of all 64.
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
    fn a_look_that_timed_out_is_repeated_with_fewer_lanes() {
        let mut looking = Looking::new();
        looking.timed_out(&all());
        let half = looking.part_of(all());
        assert!(looking.timed_out(&half));
        assert_eq!(looking.part_of(all()), half[..16]);
        while looking.timed_out(&all()[..looking.width.get()]) {}
        let one = looking.part_of(all());
        assert!(!looking.timed_out(&one));
        assert_ne!(
            looking.part_of(all()),
            one,
            "one lane that takes too long does not keep the others waiting"
        );
    }

    #[test]
    fn nothing_is_everywhere_when_every_lane_was_empty_in_turn() {
        let mut looking = Looking::new();
        assert!(looking.saw_nothing(&all()));
        assert!(!looking.saw_nothing(&all()[..32]));
        looking.saw_something();
        assert!(!looking.saw_nothing(&all()[32..]));
        assert!(looking.saw_nothing(&all()[..32]));
    }
}
