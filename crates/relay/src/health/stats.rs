//! Counters that the cycle increments, and that metrics, health and status read.

pub mod client;
pub(crate) mod labels;
mod notes;

use crate::health::progress::Progress;
use client::ClientStats;
use labels::{Named, PerLabel};
use notes::Notes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub const TOPICS_NAMED_MAX: usize = 100;
/// The maximum number of topics whose records are counted by topic. The others are counted together.
pub(crate) const TOPICS_COUNTED_MAX: usize = 50;

/// The metrics of one process.
pub struct Stats {
    pub notes: Notes,
    /// Rows settled as sent.
    pub published: Counter,
    /// Rows settled without publishing them again, because Kafka had acknowledged them before.
    pub recovered: Counter,
    /// Rows moved to the dead letters.
    pub dead_letters: Counter,
    /// Rows deleted by the reaper.
    pub reaped: Counter,
    /// Rows per batch.
    pub batch_rows: Histogram,
    /// Seconds from the claim of a batch to the confirmed COMMIT.
    pub batch_seconds: Histogram,
    /// Seconds from the first row sent to the last report of a batch.
    pub publish_seconds: Histogram,
    /// Seconds from the insert of the oldest row of a batch until Kafka acknowledged it, by the database's clock.
    pub latency_seconds: Histogram,
    /// The same latencies, for their mean.
    pub latencies: Latencies,
    /// Records that Kafka has acknowledged, by topic.
    pub topic_records: PerLabel<Counter>,
    /// The size of their rows in bytes, by topic.
    pub topic_bytes: PerLabel<Counter>,
    topics: Named,
    /// Claims that locked a lane.
    pub claims: Counter,
    /// Claims that found no row.
    pub claims_empty: Counter,
    /// Lanes that could not be claimed because another relay had locked them.
    pub lanes_elsewhere: Counter,
    /// Lanes that workers have claimed or are claiming.
    pub claimed_lanes: Gauge,
    /// Workers that were started.
    pub workers: Gauge,
    /// Workers in a cycle.
    pub workers_busy: Gauge,
    /// Scans of the scout.
    pub scans: Counter,
    /// Scans that found no lane with work.
    pub scans_empty: Counter,
    /// Sessions that a failure ended.
    pub sessions_failed: Counter,
    /// The same by reason.
    pub kafka_failures: PerLabel<Counter>,
    /// Rejected rows by reason.
    pub rejected: PerLabel<Counter>,
    /// Holds of topics.
    pub holds: Counter,
    /// Connections to Postgres that were opened.
    pub postgres_connections: Counter,
    /// Transactions that were begun in Postgres.
    pub postgres_transactions: Counter,
    /// Claims that a fault of the database ended.
    pub postgres_faults: Counter,
    /// Transactions of the reaper.
    pub reaper_batches: Counter,
    /// Failed transactions of the reaper.
    pub reaper_faults: Counter,
    /// The Kafka client's own metrics.
    pub client: ClientStats,
    /// Whether Kafka answers.
    pub kafka: Side,
    /// Whether Postgres answers.
    pub postgres: Side,
    /// Whether the schema is that of this version, as far as known.
    pub schema: Side,
    /// Held topics.
    pub held_topics: Gauge,
    /// 1 for each held topic, with its name and the reason. At most [`TOPICS_NAMED_MAX`].
    pub topics_held: PerLabel<Gauge>,
    /// Blocked keys.
    pub blocked_keys: Gauge,
    /// Requests with an idempotency key that are older than their retention and not finished.
    pub unfinished_requests: Gauge,
    /// Pauses by scope: everything, a topic, a key.
    pub paused: PerLabel<Gauge>,
    /// Acknowledged rows whose settlement is not confirmed.
    pub unsettled: Gauge,
    /// Seconds since the oldest unsent row was inserted, by the database's clock.
    pub oldest_seconds: Gauge<f64, AtomicU64>,
    /// How long the oldest transaction that has written to the outbox has been open, as far as the relay knows.
    pub oldest_writer_seconds: Gauge<f64, AtomicU64>,
    /// Unsent rows: exact up to 10,000, then the span of their ids.
    pub backlog: Gauge,
    /// The size of each table, with indexes and TOAST.
    pub table_bytes: PerLabel<Gauge>,
    /// How many transactions have begun since the oldest one that holds vacuum back.
    pub vacuum_held_back: Gauge,
    /// How many transactions have begun since the oldest one that is not frozen.
    pub transaction_id_age: Gauge,
    /// The steps of the scout and the workers.
    pub progress: Progress,
    started: Instant,
    scout_beat_ms: AtomicI64,
    measured_ms: AtomicI64,
    stopping: AtomicBool,
}

impl Stats {
    /// All counters are 0.
    pub fn new() -> Stats {
        let stats = Stats {
            published: Counter::default(),
            notes: Notes::default(),
            recovered: Counter::default(),
            dead_letters: Counter::default(),
            reaped: Counter::default(),
            batch_rows: Histogram::new(exponential_buckets(1.0, 4.0, 9)),
            batch_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
            publish_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 17)),
            latency_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 23)),
            latencies: Latencies::default(),
            topic_records: PerLabel::default(),
            topic_bytes: PerLabel::default(),
            topics: Named::new("topic", TOPICS_COUNTED_MAX),
            claims: Counter::default(),
            claims_empty: Counter::default(),
            lanes_elsewhere: Counter::default(),
            claimed_lanes: Gauge::default(),
            workers: Gauge::default(),
            workers_busy: Gauge::default(),
            scans: Counter::default(),
            scans_empty: Counter::default(),
            sessions_failed: Counter::default(),
            kafka_failures: PerLabel::default(),
            rejected: PerLabel::default(),
            holds: Counter::default(),
            postgres_connections: Counter::default(),
            postgres_transactions: Counter::default(),
            postgres_faults: Counter::default(),
            reaper_batches: Counter::default(),
            reaper_faults: Counter::default(),
            client: ClientStats::default(),
            kafka: Side::new(),
            postgres: Side::new(),
            schema: Side { fault: Mutex::default(), ..Side::new() },
            held_topics: Gauge::default(),
            topics_held: PerLabel::default(),
            blocked_keys: Gauge::default(),
            unfinished_requests: Gauge::default(),
            paused: PerLabel::default(),
            unsettled: Gauge::default(),
            oldest_writer_seconds: Gauge::default(),
            oldest_seconds: Gauge::default(),
            backlog: Gauge::default(),
            table_bytes: PerLabel::default(),
            vacuum_held_back: Gauge::default(),
            transaction_id_age: Gauge::default(),
            progress: Progress::new(),
            started: Instant::now(),
            scout_beat_ms: AtomicI64::new(0),
            measured_ms: AtomicI64::new(0),
            stopping: AtomicBool::new(false),
        };
        stats.count_pauses(0, 0, 0);
        stats
    }

    /// Records the latency of the oldest row of a batch.
    pub fn observe_latency(&self, latency: Duration) {
        self.latency_seconds.observe(latency.as_secs_f64());
        self.latencies.count.inc();
        self.latencies.micros.inc_by(latency.as_micros() as u64);
    }

    pub(crate) fn count_pauses(&self, everything: i64, topics: i64, keys: i64) {
        for (scope, pauses) in [("everything", everything), ("topic", topics), ("key", keys)] {
            self.paused.get_or_create(&vec![("scope", scope.to_owned())]).set(pauses);
        }
    }

    pub fn is_paused(&self) -> bool {
        self.pauses("everything") > 0
    }

    /// The number of pauses with this scope: everything, topic or key.
    pub fn pauses(&self, scope: &str) -> i64 {
        self.paused.get_or_create(&vec![("scope", scope.to_owned())]).get()
    }

    pub fn name_held(&self, topics: &[(String, String)]) {
        self.topics_held.clear();
        for (topic, reason) in topics.iter().take(TOPICS_NAMED_MAX) {
            let labels = vec![("topic", topic.clone()), ("reason", reason.clone())];
            self.topics_held.get_or_create(&labels).set(1);
        }
    }

    /// Counts acknowledged records of this topic and the bytes of their rows.
    pub fn count_topic(&self, topic: &str, records: u64, bytes: u64) {
        let label = self.topics.label(topic);
        self.topic_records.get_or_create(&label).inc_by(records);
        self.topic_bytes.get_or_create(&label).inc_by(bytes);
    }

    pub fn count_failure(&self, reason: &'static str) {
        self.sessions_failed.inc();
        self.kafka_failures.get_or_create(&by_reason(reason)).inc();
    }

    pub fn count_rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&by_reason(reason)).inc();
    }

    /// Records that the scout has made progress.
    pub fn beat(&self) {
        self.scout_beat_ms.store(self.age_ms(), Ordering::Relaxed);
        self.progress.scouted();
    }

    /// How long ago the scout last made progress.
    pub fn since_beat(&self) -> Duration {
        self.since(&self.scout_beat_ms)
    }

    /// Records that the backlog and the oldest unsent row were measured.
    pub fn measured(&self) {
        self.measured_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    /// The time since they were last measured, or since the start.
    pub fn since_measured(&self) -> Duration {
        self.since(&self.measured_ms)
    }

    /// Whether they were measured at all.
    pub fn has_measured(&self) -> bool {
        self.measured_ms.load(Ordering::Relaxed) > 0
    }

    fn age_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn since(&self, moment_ms: &AtomicI64) -> Duration {
        let moment = Duration::from_millis(moment_ms.load(Ordering::Relaxed).unsigned_abs());
        self.started.elapsed().saturating_sub(moment)
    }

    /// Records that the relay drains and then ends.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// "ready", and what else is worth knowing, on one line.
    pub fn ready(&self) -> String {
        self.notes.ready()
    }

    /// Why the relay is not ready, on one line; `None` if it is ready.
    pub fn not_ready(&self) -> Option<String> {
        if self.is_stopping() {
            return Some("stopping: draining events in flight".to_owned());
        }
        let fault = |side: &Side, name: &str| side.fault().map(|fault| format!("{name}: {fault}"));
        let faults =
            [fault(&self.postgres, "PostgreSQL"), fault(&self.schema, "schema"), fault(&self.kafka, "Kafka")];
        let text = faults.into_iter().flatten().collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then_some(text)
    }
}

/// Reasons are defined in the code, so the number of labels is bounded.
fn by_reason(reason: &'static str) -> labels::Label {
    vec![("reason", reason.to_owned())]
}

/// Latencies and their sum. A histogram cannot be read back.
#[derive(Default)]
pub struct Latencies {
    pub count: Counter,
    pub micros: Counter,
}

/// Whether Kafka or Postgres answers, and if not, why.
pub struct Side {
    /// 1 while it answers.
    pub up: Gauge,
    fault: Mutex<Option<String>>,
}

impl Side {
    fn new() -> Side {
        Side { up: Gauge::default(), fault: Mutex::new(Some("not reached yet".to_owned())) }
    }

    pub fn answers(&self) {
        if self.up.set(1) != 1 {
            *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Records that it does not answer. The reason must not contain a secret.
    pub fn fails(&self, reason: &dyn Display) {
        self.up.set(0);
        let line = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }

    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for Stats {
    fn default() -> Self {
        Stats::new()
    }
}
