//! The relay: decides what is claimed, published and settled, and when. It contains no SQL, no Kafka client and no wall
//! clock. It reaches Postgres and Kafka through traits such as [`outbox::Outbox`] and [`publisher::Publisher`].
//!
//! Start with [`cycle`]. [`cycle::worker`] repeats it, and [`lanes::scout`] finds work for it. ARCHITECTURE.md shows how the parts
//! fit together, and has the rules that always hold.

#![warn(unreachable_pub)]
#![allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

pub mod batch;
pub mod cycle;
pub mod fail_point;
pub mod failure;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixture;
pub mod health;
pub mod holds;
pub mod lanes;
pub mod memory;
pub mod outbox;
pub mod partition;
pub mod publisher;
pub mod reaper;
pub mod reason;
pub mod topic;

// Other files import the words that most of them need from here.
use crate::batch::{Batch, Coverage, Fate};
use crate::cycle::narrow::Narrowing;
use crate::cycle::session::Session;
use crate::failure::{Backoff, FailureKind, FaultKind, KafkaFailure, PostgresFault, Rejection};
use crate::health::Health;
use crate::health::availability::{Availability, Gate};
use crate::health::stats::Stats;
use crate::lanes::marks::{Marks, MarksSnapshot, SeenIds};
use crate::lanes::{Board, LANES, Lane};
use crate::memory::Memory;
use crate::outbox::{
    Claim, Epoch, Event, Head, Outbox, ReadEnd, ReadRequest, Search, ServerId, Settled, Settlement,
};
use crate::partition::Counts;
use crate::publisher::{DeliveryReport, NotSent, Producer, Publisher};
use crate::topic::TopicRules;
use settings::choice;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// State shared by the workers, the scout and the prober of one process. One thread runs them all, so there are no locks.
pub struct Relay<P> {
    pub kafka: Kafka<P>,
    pub lanes: Lanes,
    pub memory: Memory,
    pub settings: Settings,
    pub health: Health,
    pub stats: Arc<Stats>,
}

/// What all sessions share.
pub struct Kafka<P> {
    pub publisher: P,
    pub topics: TopicRules,
    /// The number of partitions of topics in use.
    pub counts: Rc<Counts>,
    /// Closed while Kafka is unavailable.
    pub gate: Gate,
}

pub struct Lanes {
    pub board: Board,
    pub marks: Rc<RefCell<Marks>>,
    narrowing: Narrowing,
}

impl<P> Relay<P> {
    pub fn new(
        publisher: P,
        topics: TopicRules,
        limits: Limits,
        marks: Rc<RefCell<Marks>>,
        stats: Arc<Stats>,
    ) -> Self {
        let (counts, gate) = (Rc::new(Counts::new(Arc::clone(&stats))), Gate::new(Arc::clone(&stats)));
        Relay {
            kafka: Kafka { publisher, topics, counts, gate },
            lanes: Lanes { board: Board::default(), marks, narrowing: Narrowing::new() },
            memory: Memory::new(),
            settings: Settings::new(limits),
            health: Health::new(Arc::clone(&stats)),
            stats,
        }
    }

    /// Waits until the gate is open or the relay stops.
    pub(crate) async fn opened(&self) {
        tokio::select! {
            biased;
            () = self.kafka.gate.opened() => {}
            () = self.lanes.board.stopped() => {}
        }
    }

    /// Records for this task whether all of its rows could be recorded. While acknowledged rows wait, success with other rows does not
    /// show that a lock is gone.
    pub(crate) fn note_marked(&self, task: usize, all: bool) {
        if !all {
            self.health.locks_failed(task, &"sent or rejected rows cannot be recorded");
        } else if !self.memory.waits_for_locks() {
            self.health.locks.worked(task);
        }
    }

    /// Logs at the end what was only counted so far.
    pub fn ends(&self) {
        self.health.rejections.report_all();
    }
}

/// Waits until `is_done`, which changes only before `changed` wakes its waiters.
async fn until(changed: &Notify, is_done: impl Fn() -> bool) {
    loop {
        let next = changed.notified();
        if is_done() {
            return;
        }
        next.await;
    }
}

choice! {
    /// What happens to a row that can never become a record.
    #[derive(Default)]
    OnRejected {
        /// It moves to the dead letters, and later rows of its key continue.
        #[default]
        DeadLetter = "dead-letter",
        /// It stays, and later rows of its key wait until an operator resolves it.
        BlockKey = "block-key",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub batch_rows: usize,
    /// Bytes per batch. A batch always holds at least one row.
    pub batch_bytes: usize,
    /// How long Kafka may take to acknowledge a batch.
    pub publish_timeout: Duration,
    /// How long a frozen relay may hold its lanes.
    pub takeover_timeout: Duration,
    /// How long a flow may last. Zero disables flows.
    pub flow_window: Duration,
    /// If work arrives within this time after the work before, a claim takes all free lanes, for a flow. Rarer rows cost less with a
    /// claim of their own lanes.
    pub flow_gap: Duration,
    /// A flow records this many acknowledged rows as sent at once before it settles. A settlement of all rows of its window
    /// would take many times as long as a read, and new rows would wait for it.
    pub flow_records: usize,
    /// The time between two looks for new rows while there is nothing to publish.
    pub poll_interval: Duration,
    /// The same while events arrive, unless `poll_interval` is shorter.
    pub look_every: Duration,
    pub on_rejected: OnRejected,
    /// After a topic has refused this many consecutive rows, each sent alone, the next refused row holds the topic.
    pub rejections_before_hold: u32,
}

/// While the brokers throttle, a batch should take at most this long. Its requests wait for each other in the broker, and a
/// request that waits too long fails.
const THROTTLED_BATCH: Duration = Duration::from_secs(2);
/// The bytes of a batch while the brokers throttle: at first, and at least.
const THROTTLED_BYTES: usize = 256 * 1_024;
const THROTTLED_BYTES_LEAST: usize = 16 * 1_024;

/// The current limits, and how many times they were reloaded.
pub struct Settings {
    limits: Cell<Limits>,
    /// The bytes of a batch, while the brokers throttle.
    throttled_bytes: Cell<Option<usize>>,
    reloads: Cell<u64>,
}

impl Settings {
    pub(crate) fn new(limits: Limits) -> Settings {
        Settings { limits: Cell::new(limits), throttled_bytes: Cell::new(None), reloads: Cell::new(0) }
    }

    pub fn limits(&self) -> Limits {
        let limits = self.limits.get();
        let batch_bytes = limits.batch_bytes.min(self.throttled_bytes.get().unwrap_or(usize::MAX));
        Limits { batch_bytes, ..limits }
    }

    /// Adapts the size of batches to a quota of the brokers, after a batch that took this long to publish.
    pub(crate) fn published(&self, throttled: bool, took: Option<Duration>) {
        let bytes = self.throttled_bytes.get().unwrap_or(THROTTLED_BYTES);
        let bytes = match took {
            Some(took) if took > THROTTLED_BATCH => (bytes / 2).max(THROTTLED_BYTES_LEAST),
            Some(took) if took < THROTTLED_BATCH / 4 => {
                bytes.saturating_mul(2).min(self.limits.get().batch_bytes)
            }
            _ => bytes,
        };
        self.throttled_bytes.set(throttled.then_some(bytes));
    }

    /// Applies new limits; a batch in progress may still follow the old ones. Each worker replaces its session before its next
    /// cycle, when nothing is in flight: the queue size of a producer depends on the limits, and secrets may have changed.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.set(limits);
        self.reloads.set(self.reloads.get() + 1);
    }

    /// How many times the limits were reloaded. A session that was opened at a different count is outdated.
    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn batches_are_small_while_brokers_throttle() {
        let settings = Settings::new(Limits { batch_bytes: 8 << 20, ..fixture::limits() });
        let (slow, fast) = (Some(Duration::from_secs(10)), Some(Duration::from_millis(100)));
        settings.published(false, slow);
        assert_eq!(settings.limits().batch_bytes, 8 << 20);
        for expected in [128, 64, 32, 16, 16] {
            settings.published(true, slow);
            assert_eq!(settings.limits().batch_bytes, expected << 10);
        }
        (0..20).for_each(|_| settings.published(true, fast));
        assert_eq!(settings.limits().batch_bytes, 8 << 20);
        settings.published(true, slow);
        settings.published(false, None);
        assert_eq!(settings.limits().batch_bytes, 8 << 20, "the quota no longer applies");
    }
}
