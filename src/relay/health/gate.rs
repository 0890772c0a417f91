//! The gate: closed while Kafka is away, so that nothing is claimed then.

use crate::relay::failure::Failure;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Shared by the workers, who close it, and the prober, who opens it.
pub struct Gate {
    is_open: Cell<bool>,
    reason: RefCell<Option<Failure>>,
    /// When a failure last closed it, until a row is acknowledged: a probe may not see the cause.
    doubted_at: Cell<Option<Instant>>,
    /// It was opened, and closed again before any row was acknowledged.
    in_vain: Cell<bool>,
    /// Wakes those who wait, in the order in which they came: it opened or closed.
    moved: Notify,
}

impl Gate {
    /// Closed: whether Kafka answers is not known yet.
    pub(crate) fn new() -> Gate {
        Gate {
            is_open: Cell::new(false),
            reason: RefCell::new(None),
            doubted_at: Cell::new(None),
            in_vain: Cell::new(false),
            moved: Notify::new(),
        }
    }

    /// Nothing is claimed until a probe succeeds.
    pub(crate) fn close(&self, failure: Failure) {
        self.reason.replace(Some(failure));
        if self.is_open.replace(false) {
            self.in_vain.set(self.doubted_at.get().is_some());
        }
        self.doubted_at.set(Some(Instant::now()));
        self.moved.notify_waiters();
    }

    /// Kafka answers.
    pub fn open(&self) {
        self.reason.replace(None);
        self.is_open.set(true);
        self.moved.notify_waiters();
    }

    /// Kafka answered when it was last heard of.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// How long ago a failure closed it, if no row was acknowledged since.
    pub(crate) fn doubted_for(&self) -> Option<Duration> {
        self.doubted_at.get().map(|at| at.elapsed())
    }

    /// It was opened, and closed again before any row was acknowledged.
    pub(crate) fn opened_in_vain(&self) -> bool {
        self.in_vain.get()
    }

    /// A row was acknowledged. It proves nothing if it was handed over before the last failure. True if a doubt ends.
    pub(crate) fn acknowledged(&self, handed_over: Instant) -> bool {
        let proves = self.doubted_at.get().is_some_and(|at| handed_over >= at);
        if proves {
            self.trust();
        }
        proves
    }

    /// No failure is doubted any more.
    pub(crate) fn trust(&self) {
        self.doubted_at.set(None);
        self.in_vain.set(false);
    }

    /// Why it was closed.
    pub fn reason(&self) -> Option<Failure> {
        self.reason.borrow().clone()
    }

    /// Waits until it is open.
    pub(crate) async fn opened(&self) {
        self.becomes(true).await;
    }

    /// Waits until it is closed.
    pub(crate) async fn closed(&self) {
        self.becomes(false).await;
    }

    async fn becomes(&self, open: bool) {
        loop {
            let moved = self.moved.notified();
            if self.is_open.get() == open {
                return;
            }
            moved.await;
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        Gate::new()
    }
}
