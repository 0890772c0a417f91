//! The gate: closed while Kafka is unavailable, so that nothing is claimed.

use crate::failure::Failure;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Workers close it, and the prober opens it.
pub struct Gate {
    is_open: Cell<bool>,
    reason: RefCell<Option<Failure>>,
    /// When a failure last closed it, until a row is acknowledged. A probe may not detect the cause.
    failed_at: Cell<Option<Instant>>,
    /// It was opened and closed again before any row was acknowledged.
    flapping: Cell<bool>,
    /// Wakes waiting tasks when it opens or closes.
    changed: Notify,
}

impl Gate {
    /// A closed gate, because it is not known yet whether Kafka answers.
    pub(crate) fn new() -> Gate {
        Gate {
            is_open: Cell::new(false),
            reason: RefCell::new(None),
            failed_at: Cell::new(None),
            flapping: Cell::new(false),
            changed: Notify::new(),
        }
    }

    /// Closes the gate until a probe succeeds.
    pub(crate) fn close(&self, failure: Failure) {
        self.reason.replace(Some(failure));
        if self.is_open.replace(false) {
            self.flapping.set(self.failed_at.get().is_some());
        }
        self.failed_at.set(Some(Instant::now()));
        self.changed.notify_waiters();
    }

    /// Opens the gate because Kafka answers.
    pub fn open(&self) {
        self.reason.replace(None);
        self.is_open.set(true);
        self.changed.notify_waiters();
    }

    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// How long ago a failure closed the gate, if no row was acknowledged since.
    pub(crate) fn since_failure(&self) -> Option<Duration> {
        self.failed_at.get().map(|at| at.elapsed())
    }

    /// Whether the gate was opened and closed again before any row was acknowledged.
    pub(crate) fn is_flapping(&self) -> bool {
        self.flapping.get()
    }

    /// Records that a row was acknowledged. It proves nothing if it was sent before the last failure. Returns whether it
    /// proves that Kafka works again.
    pub(crate) fn acknowledged(&self, sent: Instant) -> bool {
        let proves = self.failed_at.get().is_some_and(|at| sent >= at);
        if proves {
            self.clear_failure();
        }
        proves
    }

    /// Forgets the last failure, because Kafka works again.
    pub(crate) fn clear_failure(&self) {
        self.failed_at.set(None);
        self.flapping.set(false);
    }

    /// Why the gate is closed.
    pub fn reason(&self) -> Option<Failure> {
        self.reason.borrow().clone()
    }

    pub(crate) async fn opened(&self) {
        self.becomes(true).await;
    }

    pub(crate) async fn closed(&self) {
        self.becomes(false).await;
    }

    async fn becomes(&self, open: bool) {
        loop {
            let changed = self.changed.notified();
            if self.is_open.get() == open {
                return;
            }
            changed.await;
        }
    }
}
