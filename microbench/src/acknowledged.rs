//! The acknowledged set: a batch among other batches whose settlement is not confirmed.

use crate::rows::{Headers, rows};
use crate::{Part, ROWS};
use outbox_relay::postgres::cycle::event::OutboxRow;
use outbox_relay::relay::batch::Coverage;
use outbox_relay::relay::lanes::Lane;
use outbox_relay::relay::memory::{Acknowledged, HoldsSeen};
use std::hint::black_box;

const HOLD_VERSION: i64 = 1;

struct World {
    acknowledged: Acknowledged,
    batch: Vec<OutboxRow>,
    /// How far the batch reaches, without later batches.
    coverage: Vec<Coverage>,
}

impl World {
    /// A batch, and this number of other rows that the set already contains.
    fn new(others: usize) -> World {
        let batch = rows(1, ROWS, Headers::None);
        let mut acknowledged = Acknowledged::new();
        acknowledged.keep(rows(1 + ROWS as i64, others, Headers::None).iter(), HOLD_VERSION);
        let coverage = |lane| Coverage {
            lane,
            last_read: Some(ROWS as i64),
            first_open: None,
            cut: true,
            used_share: false,
        };
        World { acknowledged, batch, coverage: Lane::all().map(coverage).collect() }
    }

    fn keep(&mut self) {
        self.acknowledged.keep(self.batch.iter(), HOLD_VERSION);
    }

    fn forget(&mut self) {
        let seen = HoldsSeen { hold_version: HOLD_VERSION, nothing_held: true };
        self.acknowledged.forget(&self.coverage, &self.batch, seen);
    }
}

/// Keeps a batch whose settlement failed.
pub(super) struct Keep(World);

impl Keep {
    pub(super) fn new(others: usize) -> Keep {
        Keep(World::new(others))
    }
}

impl Part for Keep {
    fn prepare(&mut self) {
        self.0.forget();
    }

    fn run(&mut self) {
        self.0.keep();
    }
}

/// Looks up rows that are not in the set, which is the usual result of a claim. Without others, this is the cost that
/// every row pays while nothing fails.
pub(super) struct Contains(World);

impl Contains {
    pub(super) fn new(others: usize) -> Contains {
        Contains(World::new(others))
    }
}

impl Part for Contains {
    fn run(&mut self) {
        for row in &self.0.batch {
            black_box(self.0.acknowledged.contains(black_box(row)));
        }
    }
}

/// Forgets a batch whose settlement has been confirmed.
pub(super) struct Forget(World);

impl Forget {
    pub(super) fn new(others: usize) -> Forget {
        Forget(World::new(others))
    }
}

impl Part for Forget {
    fn prepare(&mut self) {
        self.0.keep();
    }

    fn run(&mut self) {
        self.0.forget();
    }
}
