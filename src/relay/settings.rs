//! The settings of a running relay, which a reload changes.

use crate::config::OnRejected;
use std::cell::Cell;
use std::time::Duration;

/// What bounds a batch and its waits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows a batch.
    pub batch_rows: usize,
    /// Bytes a batch; a batch holds at least one row.
    pub batch_bytes: usize,
    /// How long Kafka may take to acknowledge a batch.
    pub publish_timeout: Duration,
    /// How long a frozen relay may hold its lanes.
    pub takeover_timeout: Duration,
    /// The longest wait between two looks at the outbox.
    pub poll_interval: Duration,
    /// What happens to a row that can never become a record.
    pub on_rejected: OnRejected,
    /// After so many rows of a topic that were refused alone, one after the other, the next one holds the topic.
    pub rejections_before_hold: u32,
}

/// The limits, and how often sessions were to be renewed.
pub struct Settings {
    limits: Cell<Limits>,
    renewals: Cell<u64>,
}

impl Settings {
    pub(crate) fn new(limits: Limits) -> Settings {
        Settings { limits: Cell::new(limits), renewals: Cell::new(0) }
    }

    /// The limits now.
    pub fn limits(&self) -> Limits {
        self.limits.get()
    }

    /// These limits apply from now on; a batch in progress may still follow those before. Sessions are renewed, because the
    /// queue of a producer is made for the batches of its time.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.set(limits);
        self.renew_sessions();
    }

    /// Each worker replaces its session before its next cycle, when nothing of it is in flight. The new one is made with
    /// current settings and secrets.
    pub(crate) fn renew_sessions(&self) {
        self.renewals.set(self.renewals.get() + 1);
    }

    /// How often sessions were to be renewed: one that was opened at another count is outdated.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.get()
    }
}
