//! The gate: closed while Kafka is away, so that nothing is claimed then.

use super::failure::Failure;
use std::cell::RefCell;
use tokio::sync::watch;

/// Shared by the workers, who close it, and the prober, who opens it.
pub struct Gate {
    open: watch::Sender<bool>,
    reason: RefCell<Option<Failure>>,
}

impl Gate {
    /// Closed: whether Kafka answers is not known yet.
    pub fn new() -> Gate {
        Gate { open: watch::Sender::new(false), reason: RefCell::new(None) }
    }

    /// Nothing is claimed until a probe succeeds.
    pub fn close(&self, failure: Failure) {
        self.reason.replace(Some(failure));
        self.open.send_replace(false);
    }

    /// Kafka answers.
    pub fn open(&self) {
        self.reason.replace(None);
        self.open.send_replace(true);
    }

    /// Kafka answered when it was last heard of.
    pub fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Why it was closed.
    pub fn reason(&self) -> Option<Failure> {
        self.reason.borrow().clone()
    }

    /// Waits until it is open.
    pub async fn opened(&self) {
        // The sender lives in self: wait_for cannot fail.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    /// Waits until it is closed.
    pub async fn closed(&self) {
        let _ = self.open.subscribe().wait_for(|open| !*open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Gate::new()
    }
}
