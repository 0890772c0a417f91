//! What happened: counters that the cycle increments, and that metrics, health and status read.

use super::pauses::Counts;
use super::progress::Progress;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// No more topics than this are named in metrics.
pub const TOPICS_NAMED_MAX: usize = 100;

/// One process's figures. Handles: a clone counts into the same place.
pub struct Stats {
    /// Rows settled as sent.
    pub published: Counter,
    /// Rows settled without publishing them, since Kafka had acknowledged them before.
    pub recovered: Counter,
    /// Rows moved to the dead letters.
    pub dead_letters: Counter,
    /// Rows deleted by the reaper.
    pub reaped: Counter,
    /// Rows a batch.
    pub batch_rows: Histogram,
    /// Seconds from the claim of a batch to the confirmed COMMIT.
    pub batch_seconds: Histogram,
    /// Seconds from the first row handed to the producer to the last report of a batch.
    pub publish_seconds: Histogram,
    /// Sessions that a failure ended.
    pub sessions_failed: Counter,
    /// Connections to Postgres that were made.
    pub postgres_connections: Counter,
    /// Claims that a fault of the database ended.
    pub postgres_faults: Counter,
    /// Whether Kafka answers.
    pub kafka: Side,
    /// Whether Postgres answers.
    pub postgres: Side,
    /// Topics whose rows wait.
    pub held_topics: Gauge,
    /// The same topics by name, with the reason: 1 each. At most [`TOPICS_NAMED_MAX`].
    pub topics_held: Family<Vec<(&'static str, String)>, Gauge>,
    /// Keys whose rows wait until somebody decides.
    pub blocked_keys: Gauge,
    /// How many pauses there are: of everything, of a topic, of a key.
    pub paused: Family<Vec<(&'static str, &'static str)>, Gauge>,
    /// Acknowledged rows whose settlement is not confirmed.
    pub unsettled: Gauge,
    /// Seconds since the oldest unsent row was inserted, by the database's clock.
    pub oldest_seconds: Gauge<f64, AtomicU64>,
    /// Unsent rows: exact up to 10,000, above that the span of their ids.
    pub backlog: Gauge,
    /// The steps of the scout and the workers.
    pub progress: Progress,
    started: Instant,
    scout_beat_ms: AtomicI64,
    stopping: AtomicBool,
}

impl Stats {
    /// Nothing has happened.
    pub fn new() -> Stats {
        let stats = Stats {
            published: Counter::default(),
            recovered: Counter::default(),
            dead_letters: Counter::default(),
            reaped: Counter::default(),
            batch_rows: Histogram::new(exponential_buckets(1.0, 4.0, 9)),
            batch_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
            publish_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 17)),
            sessions_failed: Counter::default(),
            postgres_connections: Counter::default(),
            postgres_faults: Counter::default(),
            kafka: Side::new(),
            postgres: Side::new(),
            held_topics: Gauge::default(),
            topics_held: Family::default(),
            blocked_keys: Gauge::default(),
            paused: Family::default(),
            unsettled: Gauge::default(),
            oldest_seconds: Gauge::default(),
            backlog: Gauge::default(),
            progress: Progress::new(),
            started: Instant::now(),
            scout_beat_ms: AtomicI64::new(0),
            stopping: AtomicBool::new(false),
        };
        stats.count_pauses(Counts::default());
        stats
    }

    /// There are so many pauses.
    pub fn count_pauses(&self, counts: Counts) {
        let Counts { everything, topics, keys } = counts;
        for (scope, pauses) in [("everything", everything), ("topic", topics), ("key", keys)] {
            self.paused.get_or_create(&vec![("scope", scope)]).set(pauses);
        }
    }

    /// Everything is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.get_or_create(&vec![("scope", "everything")]).get() > 0
    }

    /// These topics are held, with these reasons.
    pub fn name_held(&self, topics: &[(String, String)]) {
        self.topics_held.clear();
        for (topic, reason) in topics.iter().take(TOPICS_NAMED_MAX) {
            let labels = vec![("topic", topic.clone()), ("reason", reason.clone())];
            self.topics_held.get_or_create(&labels).set(1);
        }
    }

    /// The cycle made progress: the scout came round.
    pub fn beat(&self) {
        let now = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.scout_beat_ms.store(now, Ordering::Relaxed);
        self.progress.scouted();
    }

    /// How long ago the scout last came round.
    pub fn since_beat(&self) -> Duration {
        let beat = Duration::from_millis(self.scout_beat_ms.load(Ordering::Relaxed).unsigned_abs());
        self.started.elapsed().saturating_sub(beat)
    }

    /// The relay drains and ends.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The relay was asked to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Why nothing is relayed now, in one line; `None` while both sides answer and nothing asked the relay to end.
    pub fn not_ready(&self) -> Option<String> {
        if self.is_stopping() {
            return Some("stopping: finishing what is in flight".to_owned());
        }
        let fault = |side: &Side, name: &str| side.fault().map(|fault| format!("{name}: {fault}"));
        let faults = [fault(&self.postgres, "Postgres"), fault(&self.kafka, "Kafka")];
        let text = faults.into_iter().flatten().collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then_some(text)
    }
}

/// One side of the relay: whether it answers, and if not, why.
pub struct Side {
    /// 1 while it answers.
    pub up: Gauge,
    fault: Mutex<Option<String>>,
}

impl Side {
    fn new() -> Side {
        Side { up: Gauge::default(), fault: Mutex::new(Some("was not reached yet".to_owned())) }
    }

    /// It answers.
    pub fn answers(&self) {
        if self.up.set(1) != 1 {
            *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// It does not, for this reason, which must hold no secret.
    pub fn fails(&self, reason: &dyn Display) {
        self.up.set(0);
        let line = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }

    /// Why it does not answer, in one line.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for Stats {
    fn default() -> Self {
        Stats::new()
    }
}
