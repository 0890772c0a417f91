//! The settings of a running relay that a reload may change.

use crate::config::OnRejected;
use std::cell::Cell;
use std::time::Duration;

/// The limits of a batch and its waits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows per batch.
    pub batch_rows: usize,
    /// Bytes per batch. A batch always holds at least one row.
    pub batch_bytes: usize,
    /// How long Kafka may take to acknowledge a batch.
    pub publish_timeout: Duration,
    /// How long a frozen relay may hold its lanes.
    pub takeover_timeout: Duration,
    /// How long a flow may last. Zero disables flows.
    pub flow_window: Duration,
    /// A flow begins if work arrives within this time after the work before. Rarer rows cost less with a claim of their own lanes.
    pub flow_gap: Duration,
    /// A flow records this many acknowledged rows as sent at once before it settles. A settlement of all rows of its window
    /// would take many times as long as a read, and new rows would wait for it.
    pub flow_records: usize,
    /// The time between two looks for new rows while there is nothing to publish.
    pub poll_interval: Duration,
    /// The same while events arrive, unless `poll_interval` is shorter.
    pub look_every: Duration,
    /// What happens to a rejected row.
    pub on_rejected: OnRejected,
    /// After a topic has refused this many consecutive rows, each sent alone, the next refused row holds the topic.
    pub rejections_before_hold: u32,
}

/// The current limits, and how many times sessions had to be renewed.
pub struct Settings {
    limits: Cell<Limits>,
    renewals: Cell<u64>,
}

impl Settings {
    pub(crate) fn new(limits: Limits) -> Settings {
        Settings { limits: Cell::new(limits), renewals: Cell::new(0) }
    }

    /// The current limits.
    pub fn limits(&self) -> Limits {
        self.limits.get()
    }

    /// Applies new limits; a batch in progress may still follow the old ones. Sessions are renewed, because the queue size
    /// of a producer depends on the limits.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.set(limits);
        self.renew_sessions();
    }

    /// Makes each worker replace its session before its next cycle, when nothing is in flight. The new session uses the
    /// current settings and secrets.
    pub(crate) fn renew_sessions(&self) {
        self.renewals.set(self.renewals.get() + 1);
    }

    /// How many times sessions had to be renewed. A session that was opened at a different count is outdated.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.get()
    }
}
