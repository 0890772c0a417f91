//! Low-water marks as a defective relay would keep them, in addition to the marks of the relay itself.
//!
//! They are discarded and reset by a sweep like the real marks. Only the time at which they rise is wrong.

use relay::lanes::{LANES, Lane};
use relay::outbox::{Epoch, Event};
use std::cell::{Cell, RefCell};

/// One relay's wrong marks.
pub struct WrongMarks {
    low: RefCell<[i64; LANES]>,
    highest_seen: Cell<i64>,
    /// They are valid for one life of the server and one epoch.
    valid_for: Cell<(u64, Epoch)>,
}

impl WrongMarks {
    /// No marks.
    pub fn new() -> WrongMarks {
        WrongMarks {
            low: RefCell::new([i64::MIN; LANES]),
            highest_seen: Cell::new(0),
            valid_for: Cell::new((0, Epoch::NONE)),
        }
    }

    /// Discards everything if the server or the epoch has changed.
    pub fn meet(&self, generation: u64, epoch: Epoch) {
        if self.valid_for.replace((generation, epoch)) != (generation, epoch) {
            self.low.replace([i64::MIN; LANES]);
            self.highest_seen.set(0);
        }
    }

    /// The mark of a lane.
    pub fn low(&self, lane: Lane) -> i64 {
        self.low.borrow()[lane.index()]
    }

    /// Rows were read.
    pub fn saw<E: Event>(&self, rows: &[E]) {
        let highest = rows.iter().map(Event::id).max().unwrap_or(0);
        self.highest_seen.set(self.highest_seen.get().max(highest));
    }

    /// No id up to this one can be committed any more. A relay that omits the second read raises its marks here.
    pub fn fence_passed(&self, fenced: i64) {
        let to = fenced.min(self.highest_seen.get());
        for low in self.low.borrow_mut().iter_mut() {
            *low = (*low).max(to);
        }
    }

    /// These rows are read. A relay that does not wait for the COMMIT of their settlement raises its marks here.
    pub fn read<E: Event>(&self, fenced: i64, rows: &[E]) {
        for row in rows.iter().filter(|row| row.id() <= fenced) {
            let low = &mut self.low.borrow_mut()[row.lane().index()];
            *low = (*low).max(row.id());
        }
    }

    /// A sweep found an unsent row.
    pub fn found(&self, lane: Lane, id: i64) {
        let low = &mut self.low.borrow_mut()[lane.index()];
        if id <= *low {
            *low = i64::MIN;
        }
    }
}
