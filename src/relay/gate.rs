//! The gate: closed while Kafka is away, so that nothing is claimed then.

use super::failure::Failure;
use std::cell::{Cell, RefCell};
use tokio::sync::Notify;

/// Shared by the workers, who close it, and the prober, who opens it.
pub struct Gate {
    is_open: Cell<bool>,
    reason: RefCell<Option<Failure>>,
    /// Wakes those who wait, in the order in which they came: it opened or closed.
    moved: Notify,
}

impl Gate {
    /// Closed: whether Kafka answers is not known yet.
    pub fn new() -> Gate {
        Gate { is_open: Cell::new(false), reason: RefCell::new(None), moved: Notify::new() }
    }

    /// Nothing is claimed until a probe succeeds.
    pub fn close(&self, failure: Failure) {
        self.reason.replace(Some(failure));
        self.is_open.set(false);
        self.moved.notify_waiters();
    }

    /// Kafka answers.
    pub fn open(&self) {
        self.reason.replace(None);
        self.is_open.set(true);
        self.moved.notify_waiters();
    }

    /// Kafka answered when it was last heard of.
    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Why it was closed.
    pub fn reason(&self) -> Option<Failure> {
        self.reason.borrow().clone()
    }

    /// Waits until it is open.
    pub async fn opened(&self) {
        self.becomes(true).await;
    }

    /// Waits until it is closed.
    pub async fn closed(&self) {
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
