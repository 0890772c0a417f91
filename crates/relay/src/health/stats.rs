//! Counters that the cycle increments, and that metrics, health and status read.

use crate::health::Progress;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub const TOPICS_NAMED_MAX: usize = 100;
/// The maximum number of topics whose records are counted by topic. The others are counted together.
pub(crate) const TOPICS_COUNTED_MAX: usize = 50;

const BROKERS_NAMED_MAX: usize = 50;

/// Defines a struct of metrics. Each begins with its default, or with the given value.
macro_rules! metrics {
    (@first) => { Default::default() };
    (@first $first:expr) => { $first };
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $vis:vis $field:ident: $type:ty $(= $first:expr)?,)* }) => {
        $(#[$meta])*
        pub struct $name { $($(#[$doc])* $vis $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: metrics!(@first $($first)?),)* }
            }
        }
    };
}

metrics! {
    /// One for each process. The help of each metric in `src/admin/metrics/catalogue.rs` says what it counts.
    Stats {
        pub notes: Notes,
        pub published: Counter,
        pub recovered: Counter,
        pub dead_letters: Counter,
        pub reaped: Counter,
        pub batch_rows: Histogram = Histogram::new(exponential_buckets(1.0, 4.0, 9)),
        pub batch_seconds: Histogram = Histogram::new(exponential_buckets(0.001, 2.0, 17)),
        pub publish_seconds: Histogram = Histogram::new(exponential_buckets(0.0005, 2.0, 17)),
        pub latency_seconds: Histogram = Histogram::new(exponential_buckets(0.001, 2.0, 23)),
        /// The same latencies, for their mean.
        pub latencies: Latencies,
        pub topic_records: PerLabel<Counter>,
        pub topic_bytes: PerLabel<Counter>,
        topics: Named = Named::new("topic", TOPICS_COUNTED_MAX),
        pub claims: Counter,
        pub claims_empty: Counter,
        pub lanes_elsewhere: Counter,
        pub claimed_lanes: Gauge,
        pub workers: Gauge,
        pub workers_busy: Gauge,
        pub scans: Counter,
        pub scans_empty: Counter,
        pub sessions_failed: Counter,
        pub kafka_failures: PerLabel<Counter>,
        pub rejected: PerLabel<Counter>,
        pub holds: Counter,
        pub postgres_connections: Counter,
        pub postgres_transactions: Counter,
        pub postgres_faults: Counter,
        pub reaper_batches: Counter,
        pub reaper_faults: Counter,
        pub client: ClientStats,
        pub kafka: Readiness,
        pub postgres: Readiness,
        /// Whether the schema is that of this version, as far as known.
        pub schema: Readiness = Readiness { fault: Mutex::default(), ..Readiness::default() },
        pub held_topics: Gauge,
        pub topics_held: PerLabel<Gauge>,
        pub blocked_keys: Gauge,
        pub unfinished_requests: Gauge,
        pub paused: PerLabel<Gauge>,
        pub unsettled: Gauge,
        pub oldest_seconds: Gauge<f64, AtomicU64>,
        pub oldest_writer_seconds: Gauge<f64, AtomicU64>,
        pub backlog: Gauge,
        pub table_bytes: PerLabel<Gauge>,
        pub vacuum_held_back: Gauge,
        pub transaction_id_age: Gauge,
        pub progress: Progress = Progress::new(),
        started: Instant = Instant::now(),
        scout_beat_ms: AtomicI64,
        measured_ms: AtomicI64,
        stopping: AtomicBool,
    }
}

metrics! {
    /// The counters continue when a producer is replaced. The gauges are about the current producers.
    ClientStats {
        pub requests: Counter,
        pub responses: Counter,
        pub round_trip_seconds: Counter<f64, AtomicU64>,
        pub retries: Counter,
        pub errors: Counter,
        pub timeouts: Counter,
        pub connects: Counter,
        pub disconnects: Counter,
        pub sent_bytes: Counter,
        pub received_bytes: Counter,
        pub in_flight: Gauge,
        pub waiting: Gauge,
        pub queued: Gauge,
        pub queued_bytes: Gauge,
        pub throttle_seconds: Gauge<f64, AtomicU64>,
        pub broker_seconds: PerLabel<Gauge<f64, AtomicU64>>,
        /// The label of a broker is its number.
        pub brokers: Named = Named::new("broker", BROKERS_NAMED_MAX),
    }
}

impl Stats {
    pub fn new() -> Stats {
        let stats = Stats::default();
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

    pub fn beat(&self) {
        self.scout_beat_ms.store(self.age_ms(), Ordering::Relaxed);
        self.progress.scouted();
    }

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
        let fault = |side: &Readiness, name: &str| side.fault().map(|fault| format!("{name}: {fault}"));
        let faults =
            [fault(&self.postgres, "PostgreSQL"), fault(&self.schema, "schema"), fault(&self.kafka, "Kafka")];
        let text = faults.into_iter().flatten().collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then_some(text)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reasons are defined in the code, so the number of labels is bounded.
fn by_reason(reason: &'static str) -> Label {
    vec![("reason", reason.to_owned())]
}

/// Latencies and their sum. A histogram cannot be read back.
#[derive(Default)]
pub struct Latencies {
    pub count: Counter,
    pub micros: Counter,
}

/// Whether Kafka or Postgres answers, and if not, why.
pub struct Readiness {
    pub up: Gauge,
    fault: Mutex<Option<String>>,
}

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness { up: Gauge::default(), fault: Mutex::new(Some("not reached yet".to_owned())) }
    }
}

impl Readiness {
    pub fn answers(&self) {
        if self.up.set(1) != 1 {
            *locked(&self.fault) = None;
        }
    }

    /// Records that it does not answer. The reason must not contain a secret.
    pub fn fails(&self, reason: &dyn Display) {
        self.up.set(0);
        let line = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        *locked(&self.fault) = Some(line);
    }

    pub fn fault(&self) -> Option<String> {
        locked(&self.fault).clone()
    }
}

/// The label value for all values that are not named.
pub(crate) const OTHER: &str = "other";

pub struct Named {
    label: &'static str,
    most: usize,
    names: Mutex<HashSet<String>>,
}

pub(crate) type Label = Vec<(&'static str, String)>;

pub(crate) type PerLabel<M> = Family<Label, M>;

impl Named {
    pub(crate) fn new(label: &'static str, most: usize) -> Named {
        Named { label, most, names: Mutex::default() }
    }

    /// The label for this value, or [`OTHER`] if there are too many. A named value stays named, so its counters continue.
    pub fn label(&self, value: &str) -> Label {
        let mut names = locked(&self.names);
        let is_named = names.contains(value) || (names.len() < self.most && names.insert(value.to_owned()));
        vec![(self.label, if is_named { value } else { OTHER }.to_owned())]
    }
}

/// How long a change of the number of partitions is shown, and how many of them are.
const CHANGES_SHOWN_FOR: Duration = Duration::from_secs(3_600);
const CHANGES_SHOWN: usize = 3;
/// How long a quota counts after its last report. The client reports once in ten seconds, and a request may be delayed for longer.
const THROTTLED_FOR: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Notes {
    changes: Mutex<VecDeque<(Instant, String)>>,
    /// When the brokers last delayed requests because of a quota, and for how long.
    throttled: Mutex<Option<(Instant, Duration)>>,
}

impl Notes {
    /// Records that a topic has another number of partitions.
    pub(crate) fn partitions_changed(&self, topic: &str, before: u32, now: u32) {
        let text = format!("topic {topic} has {now} partitions instead of {before}");
        let mut changes = locked(&self.changes);
        changes.truncate(CHANGES_SHOWN - 1);
        changes.push_front((Instant::now(), text));
    }

    /// Records that a broker has delayed requests for this long, because of a quota.
    pub fn throttled(&self, delay: Duration) {
        *locked(&self.throttled) = Some((Instant::now(), delay));
    }

    /// For how long a broker has delayed requests recently, because of a quota.
    pub(crate) fn throttle(&self) -> Option<Duration> {
        let throttled = *locked(&self.throttled);
        throttled.filter(|(at, _)| at.elapsed() < THROTTLED_FOR).map(|(_, delay)| delay)
    }

    pub(crate) fn ready(&self) -> String {
        let mut text = "ready".to_owned();
        if let Some(delay) = self.throttle() {
            text += &format!("; throttled by a quota of the brokers, for up to {delay:.1?} per request");
        }
        for (at, change) in &*locked(&self.changes) {
            let age = at.elapsed();
            if age < CHANGES_SHOWN_FOR {
                text += &format!("; {change} (noticed {} min ago)", age.as_secs() / 60);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[test]
    fn values_beyond_the_limit_are_counted_together() {
        let named = Named::new("topic", 2);
        let value = |value| named.label(value)[0].1.clone();
        assert_eq!([value("a"), value("b"), value("c"), value("a")], ["a", "b", OTHER, "a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_changes_are_shown_for_an_hour() {
        let notes = Notes::default();
        assert_eq!(notes.ready(), "ready");
        for partitions in 2..10 {
            notes.partitions_changed("a", partitions - 1, partitions);
        }
        advance(Duration::from_secs(150)).await;
        assert_eq!(notes.ready().matches("instead of").count(), CHANGES_SHOWN);
        let latest = "ready; topic a has 9 partitions instead of 8 (noticed 2 min ago)";
        assert!(notes.ready().starts_with(latest), "{}", notes.ready());
        advance(CHANGES_SHOWN_FOR).await;
        assert_eq!(notes.ready(), "ready");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_is_shown_until_a_minute_after_its_last_report() {
        let notes = Notes::default();
        notes.throttled(Duration::from_millis(9_800));
        assert_eq!(notes.ready(), "ready; throttled by a quota of the brokers, for up to 9.8s per request");
        advance(THROTTLED_FOR).await;
        assert_eq!((notes.throttle(), notes.ready().as_str()), (None, "ready"));
    }
}
