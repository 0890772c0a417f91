//! The metrics of the relay and its process state, which metrics, health and status read.
//!
//! To add a metric, add it to the list, in the order of `docs/metrics.md`, and use its field.

use crate::health::Progress;
use crate::health::metrics::{Gauge, Named};
use crate::holds::Counts;
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub const TOPICS_NAMED_MAX: usize = 100;
/// The maximum number of topics whose records are counted by topic. The others are counted together.
pub(crate) const TOPICS_COUNTED_MAX: usize = 50;
const BROKERS_NAMED_MAX: usize = 50;
/// How long a change of the number of partitions is shown, and how many of them are.
const CHANGES_SHOWN_FOR: Duration = Duration::from_secs(3_600);
const CHANGES_SHOWN: usize = 3;
/// How long a quota counts after its last report. The client reports once in ten seconds, and a request may be delayed for longer.
const THROTTLED_FOR: Duration = Duration::from_secs(60);

crate::metrics! {
    /// The metrics of one process. Those of the Kafka client are summed over all producers: the counters continue when a
    /// producer is replaced, and the gauges are about the current producers.
    pub struct Stats {
        Late {
            ready: Gauge "outbox_relay_ready" [],
                "1 while the relay can publish, as reported by /readyz",
                "0: Kafka or PostgreSQL is unavailable, or the relay is shutting down";
            kafka_up: Gauge "outbox_relay_kafka_up" [],
                "1 while Kafka is available", "0: claims are suspended";
            postgres_up: Gauge "outbox_relay_postgres_up" [],
                "1 while PostgreSQL is available to all parts of the relay", "0: nothing is published";
            oldest_seconds: FloatGauge "outbox_relay_oldest_unsent_seconds" [],
                "Age of the oldest unsent row by the database clock, including rows that are held, blocked or paused; measured \
                 every 5 s, less often if the measurement is slow",
                "more than a few seconds, or an increase of one second per second: events are waiting";
            backlog: Gauge "outbox_relay_backlog_rows" [],
                "Unsent rows, but rows that are held, blocked or paused may be left out; exact up to 10000, above that estimated \
                 from the range of IDs",
                "an increase that lasts for minutes: more is inserted than published";
            measurement_age: FloatGauge "outbox_relay_measurement_age_seconds" [],
                "Time since the last measurement of the backlog and the oldest unsent row; infinite until the first one",
                "more than a few minutes: PostgreSQL is unavailable or the measurement fails, so both metrics are outdated";
            latency_seconds: Histogram(0.001, 2.0, 23) "outbox_relay_latency_seconds" [],
                "Time from the start of the transaction that inserted an event to Kafka's acknowledgement of that event, by the \
                 database clock",
                "a high quantile far above its usual value";
            unsettled: Gauge "outbox_relay_unsettled_rows" [],
                "Rows that Kafka has acknowledged and that are not marked as sent yet",
                "above 0 for minutes: another session holds locks on outbox rows, settlements fail, or the rows were paused, held or \
                 blocked after the acknowledgement; after a crash, these rows would be sent again";
            oldest_writer_seconds: FloatGauge "outbox_relay_oldest_writer_seconds" [],
                "Time for which the oldest transaction that has written to the outbox, or drawn an ID for it, has been open; 0 \
                 while there is nothing to publish",
                "more than a few minutes: `outbox-relay doctor` names the session; vacuum cannot remove sent rows meanwhile";
            progress_age: FloatGauge "outbox_relay_progress_age_seconds" [],
                "Time since the relay last polled for work; /livez fails at 60",
                "more than a few seconds: a statement or the process hangs";
        }
        Fast {
            published: Counter "outbox_relay_published_total" [],
                "Rows that were marked as sent", "no increase while there is a backlog";
            recovered: Counter "outbox_relay_recovered_total" [],
                "Published rows that were settled without being resent, because Kafka had already acknowledged them",
                "a steady increase: settlements fail repeatedly";
            topic_records: Counter "outbox_relay_topic_records_total" ["topic"],
                "Records that Kafka has acknowledged, by topic; the first 50 topics have their own label value, and all others \
                 count as `other`",
                "no increase for a topic that always has events";
            topic_bytes: Counter "outbox_relay_topic_bytes_total" ["topic"],
                "Size of the rows of acknowledged records, as received from PostgreSQL, by topic", "";
            batch_rows: Histogram(1.0, 4.0, 9) "outbox_relay_batch_rows" [],
                "Rows per batch", "";
            batch_seconds: Histogram(0.001, 2.0, 17) "outbox_relay_batch_seconds" [],
                "Time from the claim of a batch to its confirmed COMMIT",
                "more than a second; the part that is not in outbox_relay_publish_seconds is spent in PostgreSQL";
            publish_seconds: Histogram(0.0005, 2.0, 17) "outbox_relay_publish_seconds" [],
                "Time from sending the first row of a batch to its last acknowledgement",
                "more than a second: Kafka is slow";
            workers: Gauge "outbox_relay_workers" [],
                "Workers", "";
            workers_busy: Gauge "outbox_relay_workers_busy" [],
                "Workers that are processing a batch", "all workers, all the time: the relay is at its limit";
            claimed_lanes: Gauge "outbox_relay_claimed_lanes" [],
                "Lanes claimed by workers, out of 64", "";
            lanes_elsewhere: Counter "outbox_relay_lanes_locked_elsewhere_total" [],
                "Requested lanes that another relay had claimed", "";
            claims: Counter "outbox_relay_claims_total" [],
                "Claims that got at least one lane", "";
            claims_empty: Counter "outbox_relay_claims_empty_total" [],
                "Claims that got a lane but no row, because another relay was faster",
                "nearly as high as outbox_relay_claims_total: there are too many relays";
            scans: Counter "outbox_relay_scans_total" [],
                "Scans for lanes with unsent rows", "";
            scans_empty: Counter "outbox_relay_scans_empty_total" [],
                "Scans for lanes with unsent rows that found nothing new", "";
        }
        Failed {
            held_topics: Gauge "outbox_relay_held_topics" [],
                "Held topics, whose rows wait; status lists them with the reason", "above 0";
            topics_held: Gauge "outbox_relay_topic_held" ["topic" "reason"],
                "1 for each held topic, with the reason; at most 100 topics", "1";
            holds: Counter "outbox_relay_holds_total" [],
                "Holds that this relay has placed on topics", "repeated increases: the topic is unstable";
            blocked_keys: Gauge "outbox_relay_blocked_keys" [],
                "Blocked keys: their first event cannot be published, and later events wait",
                "above 0: an operator must resolve them";
            paused: Gauge "outbox_relay_paused" ["scope"],
                "Active pauses of everything, a topic or a key; status lists them",
                "above 0 for longer than intended: events wait until an operator resumes them";
            dead_letters: Counter "outbox_relay_dead_letters_total" [],
                "Rows that were moved to the dead letters", "an increase: events were not delivered to their consumers";
            rejected: Counter "outbox_relay_rejected_total" ["reason"],
                "Rejected rows (dead letters and blocked keys), by reason", "an increase";
            sessions_failed: Counter "outbox_relay_sessions_failed_total" [],
                "Producers that were replaced after a failure", "an increase that lasts for minutes: the failure persists";
            kafka_failures: Counter "outbox_relay_kafka_failures_total" ["reason"],
                "Producers that were replaced after a failure, by reason (see docs/error-codes.md)",
                "an increase that lasts for minutes";
            postgres_faults: Counter "outbox_relay_postgres_faults_total" [],
                "Claims that were ended by a PostgreSQL error; their rows are claimed again",
                "an increase that lasts for minutes";
            postgres_connections: Counter "outbox_relay_postgres_connections_total" [],
                "Connections opened to PostgreSQL, including reconnects", "a steady increase: connections are lost";
            reaper_faults: Counter "outbox_relay_reaper_faults_total" [],
                "Failed batches of the reaper, except while PostgreSQL is unavailable", "an increase that lasts for hours: the table grows";
            unfinished_requests: Gauge "outbox_relay_idempotency_unfinished_requests" [],
                "Unfinished requests with an idempotency key that are older than idempotency_retention, at the last run of the \
                 reaper; counted up to 1000",
                "more than 0: the application is not completing them";
            kafka_request_errors: Counter "outbox_relay_kafka_request_errors_total" [],
                "Requests that could not be sent to a broker, and responses that could not be read",
                "an increase that lasts for minutes";
            kafka_request_retries: Counter "outbox_relay_kafka_request_retries_total" [],
                "Requests that the Kafka client retried",
                "an increase that lasts for minutes: partition leaders are changing, or brokers are overloaded";
            kafka_request_timeouts: Counter "outbox_relay_kafka_request_timeouts_total" [],
                "Requests to brokers that timed out", "an increase";
            kafka_disconnects: Counter "outbox_relay_kafka_disconnects_total" [],
                "Closed connections to brokers; brokers close idle connections after several minutes",
                "an increase while rows are published";
        }
        Costs {
            postgres_transactions: Counter "outbox_relay_postgres_transactions_total" [],
                "Transactions begun in PostgreSQL, including read-only ones",
                "more than about 100 per second per relay while nothing is inserted";
            reaped: Counter "outbox_relay_reaped_total" [],
                "Rows deleted because they were past retention",
                "no increase for hours while rows are sent: the table grows";
            table_bytes: Gauge "outbox_relay_table_bytes" ["table"],
                "Size of the outbox, the dead letters and the history, with indexes and TOAST; measured once a minute",
                "a steady increase: the disk of the database server fills up";
            vacuum_held_back: Gauge "outbox_relay_vacuum_held_back_transactions" [],
                "Transactions that have begun since the oldest open transaction, standby, prepared transaction or replication slot that \
                 keeps vacuum from removing rows; measured once a minute",
                "more than a million: the table grows, and claims become slower";
            transaction_id_age: Gauge "outbox_relay_transaction_id_age" [],
                "Transactions that have begun since the oldest one in any database of the server that vacuum has not frozen; \
                 measured once a minute",
                "more than a billion: PostgreSQL accepts no writes at two billion";
            reaper_batches: Counter "outbox_relay_reaper_batches_total" [],
                "Batches of the reaper, including empty ones; only one relay reaps at a time", "";
            kafka_requests: Counter "outbox_relay_kafka_requests_total" [],
                "Requests to brokers, including retries", "";
            kafka_responses: Counter "outbox_relay_kafka_responses_total" [],
                "Broker responses for which a round trip was measured", "";
            kafka_round_trip_seconds: FloatCounter "outbox_relay_kafka_round_trip_seconds_total" [],
                "Total time between requests to brokers and their responses. Divide it by outbox_relay_kafka_responses_total to get \
                 the mean round trip. For requests that carry records, the round trip includes replication",
                "";
            kafka_broker_seconds: FloatGauge "outbox_relay_kafka_broker_round_trip_seconds" ["broker"],
                "99th percentile of a broker's recent response times, for the slowest producer; at most 50 brokers",
                "one broker is much slower than the others";
            kafka_in_flight: Gauge "outbox_relay_kafka_requests_in_flight" [],
                "Requests waiting for a response from a broker", "";
            kafka_waiting: Gauge "outbox_relay_kafka_requests_waiting" [],
                "Requests waiting to be sent to a broker", "above 0 for minutes: a broker or the network cannot keep up";
            kafka_throttle_seconds: FloatGauge "outbox_relay_kafka_throttle_seconds" [],
                "Longest delay of a request by a quota of the brokers, in the client's last report",
                "above 0: the brokers limit the relay's rate";
            kafka_queued: Gauge "outbox_relay_kafka_queued_records" [],
                "Unacknowledged records in the Kafka client", "";
            kafka_queued_bytes: Gauge "outbox_relay_kafka_queued_bytes" [],
                "Size of the unacknowledged records in the Kafka client", "";
            kafka_sent_bytes: Counter "outbox_relay_kafka_sent_bytes_total" [],
                "Bytes sent to brokers, compressed", "";
            kafka_received_bytes: Counter "outbox_relay_kafka_received_bytes_total" [],
                "Bytes received from brokers", "";
            kafka_connects: Counter "outbox_relay_kafka_connects_total" [],
                "Attempts to connect to a broker", "a steady increase: connections are lost or cannot be opened";
        }
    } and {
        pub notes: Notes = Notes::default();
        /// The number of latencies, and their sum. A histogram cannot be read back.
        pub latency_count: AtomicU64 = AtomicU64::default();
        pub latency_micros: AtomicU64 = AtomicU64::default();
        topics: Named = Named::new(TOPICS_COUNTED_MAX);
        /// Brokers by number.
        pub brokers: Named = Named::new(BROKERS_NAMED_MAX);
        pub kafka: Side = Side::new(kafka_up.clone());
        pub postgres: Side = Side::new(postgres_up.clone());
        /// Whether the schema is that of this version, as far as known.
        pub schema: Side = Side { fault: Mutex::default(), ..Side::new(Gauge::default()) };
        /// The steps of the scout and the workers.
        pub progress: Progress = Progress::new();
        scouted_at: Mutex<Instant> = Mutex::new(Instant::now());
        measured_at: Mutex<Option<Instant>> = Mutex::default();
        stopping: AtomicBool = AtomicBool::new(false);
    }
}

impl Stats {
    /// All counters are 0.
    pub fn new() -> Stats {
        let stats = Stats::zero();
        stats.count_pauses(Counts::default());
        stats
    }

    /// Sets the metrics that are measured by the clock.
    pub fn refresh(&self) {
        self.ready.set(self.not_ready().is_none().into());
        self.measurement_age.set(self.since_measured().map_or(f64::INFINITY, |age| age.as_secs_f64()));
        // A relay that stops only waits for what is in flight, for up to its shutdown_timeout.
        let since_beat = if self.is_stopping() { Duration::ZERO } else { self.since_beat() };
        self.progress_age.set(since_beat.as_secs_f64());
    }

    /// Records the latency of the oldest row of a batch.
    pub fn observe_latency(&self, latency: Duration) {
        self.latency_seconds.observe(latency.as_secs_f64());
        self.latency_count.fetch_add(1, Ordering::Relaxed);
        self.latency_micros.fetch_add(latency.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_pauses(&self, Counts { everything, topics, keys }: Counts) {
        for (scope, pauses) in [("everything", everything), ("topic", topics), ("key", keys)] {
            self.paused.at([scope]).set(pauses);
        }
    }

    pub fn is_paused(&self) -> bool {
        self.pauses("everything") > 0
    }

    /// The number of pauses with this scope: everything, topic or key.
    pub fn pauses(&self, scope: &str) -> i64 {
        self.paused.at([scope]).get()
    }

    pub fn name_held(&self, topics: &[(String, String)]) {
        self.topics_held.clear();
        for (topic, reason) in topics.iter().take(TOPICS_NAMED_MAX) {
            self.topics_held.at([topic, reason]).set(1);
        }
    }

    /// Counts acknowledged records of this topic and the bytes of their rows.
    pub fn count_topic(&self, topic: &str, records: u64, bytes: u64) {
        let topic = self.topics.value(topic);
        self.topic_records.at([topic]).inc_by(records);
        self.topic_bytes.at([topic]).inc_by(bytes);
    }

    /// Records that the scout has made progress.
    pub fn beat(&self) {
        *lock(&self.scouted_at) = Instant::now();
        self.progress.scouted();
    }

    /// How long ago the scout last made progress.
    pub fn since_beat(&self) -> Duration {
        lock(&self.scouted_at).elapsed()
    }

    /// Records that the backlog and the oldest unsent row were measured.
    pub fn measured(&self) {
        *lock(&self.measured_at) = Some(Instant::now());
    }

    /// The time since they were last measured. `None` if they never were.
    pub fn since_measured(&self) -> Option<Duration> {
        lock(&self.measured_at).map(|at| at.elapsed())
    }

    /// Records that the relay drains and then ends.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
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

/// Whether Kafka or Postgres answers, and if not, why.
pub struct Side {
    /// 1 while it answers.
    pub up: Gauge,
    fault: Mutex<Option<String>>,
}

impl Side {
    fn new(up: Gauge) -> Side {
        Side { up, fault: Mutex::new(Some("not reached yet".to_owned())) }
    }

    pub fn answers(&self) {
        if self.up.set(1) != 1 {
            *lock(&self.fault) = None;
        }
    }

    /// Records that it does not answer. The reason must not contain a secret.
    pub fn fails(&self, reason: &dyn Display) {
        self.up.set(0);
        let line = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        *lock(&self.fault) = Some(line);
    }

    pub fn fault(&self) -> Option<String> {
        lock(&self.fault).clone()
    }
}

impl Default for Stats {
    fn default() -> Self {
        Stats::new()
    }
}

/// What `/readyz`, `status` and `doctor` add while the relay is ready.
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
        let mut changes = lock(&self.changes);
        changes.truncate(CHANGES_SHOWN - 1);
        changes.push_front((Instant::now(), text));
    }

    /// Records that a broker has delayed requests for this long, because of a quota.
    pub fn throttled(&self, delay: Duration) {
        *lock(&self.throttled) = Some((Instant::now(), delay));
    }

    /// For how long a broker has delayed requests recently, because of a quota.
    pub(crate) fn throttle(&self) -> Option<Duration> {
        let throttled = *lock(&self.throttled);
        throttled.filter(|(at, _)| at.elapsed() < THROTTLED_FOR).map(|(_, delay)| delay)
    }

    /// "ready", and the notes on the same line.
    pub fn ready(&self) -> String {
        let mut text = "ready".to_owned();
        if let Some(delay) = self.throttle() {
            text += &format!("; throttled by a quota of the brokers, for up to {delay:.1?} per request");
        }
        for (at, change) in &*lock(&self.changes) {
            let age = at.elapsed();
            if age < CHANGES_SHOWN_FOR {
                text += &format!("; {change} (noticed {} min ago)", age.as_secs() / 60);
            }
        }
        text
    }
}

/// Locks. What a thread leaves behind when it panics is never read: a panic ends the process.
pub fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn the_age_of_the_measurements_is_infinite_until_the_first_one() {
        let stats = Stats::new();
        stats.refresh();
        assert_eq!(stats.measurement_age.get(), f64::INFINITY, "its values are 0, although nothing is known");
        stats.measured();
        advance(Duration::from_secs(7)).await;
        stats.refresh();
        assert_eq!(stats.measurement_age.get(), 7.0);
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
