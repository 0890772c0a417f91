//! The metrics as OpenMetrics text, as the catalogue describes them. A scrape sends no request to Kafka or Postgres.
//!
//! Conventions: seconds and bytes as base units, and `_total` at the end of counters. Every label has few values: the number
//! of values from outside, such as topics, is limited.

mod catalogue;
mod process;

pub use catalogue::{CATALOGUE, Metric, MetricKind, Question};

use catalogue::*;
use process::Process;
use prometheus_client::encoding::text;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric as Collected, Registry, Unit};
use relay::health::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The content of `/metrics`.
pub struct Metrics {
    registry: Registry,
    stats: Arc<Stats>,
    process: Process,
    ready: Gauge,
    measurement_age: Gauge<f64, AtomicU64>,
    progress_age: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Registers every metric.
    pub fn new(stats: &Arc<Stats>) -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::default(),
            stats: Arc::clone(stats),
            process: Process::new(),
            ready: Gauge::default(),
            measurement_age: Gauge::default(),
            progress_age: Gauge::default(),
        };
        metrics.register_lateness();
        metrics.register_speed();
        metrics.register_failures();
        metrics.register_costs();
        metrics
    }

    /// The metrics as OpenMetrics text.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        self.process.read();
        self.ready.set(self.stats.not_ready().is_none().into());
        self.measurement_age.set(self.stats.since_measured().as_secs_f64());
        self.progress_age.set(self.stats.since_beat().as_secs_f64());
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn register_lateness(&mut self) {
        let (stats, into) = (&self.stats, &mut self.registry);
        register(into, READY, self.ready.clone());
        register(into, KAFKA_UP, stats.kafka.up.clone());
        register(into, POSTGRES_UP, stats.postgres.up.clone());
        register(into, OLDEST_UNSENT, stats.oldest_seconds.clone());
        register(into, BACKLOG, stats.backlog.clone());
        register(into, MEASURED, self.measurement_age.clone());
        register(into, LATENCY, stats.latency_seconds.clone());
        register(into, UNSETTLED, stats.unsettled.clone());
        register(into, OLDEST_WRITER, stats.oldest_writer_seconds.clone());
        register(into, PROGRESS, self.progress_age.clone());
    }

    fn register_speed(&mut self) {
        let (stats, into) = (&self.stats, &mut self.registry);
        register(into, PUBLISHED, stats.published.clone());
        register(into, RECOVERED, stats.recovered.clone());
        register(into, TOPIC_RECORDS, stats.topic_records.clone());
        register(into, TOPIC_BYTES, stats.topic_bytes.clone());
        register(into, BATCH_ROWS, stats.batch_rows.clone());
        register(into, BATCH_SECONDS, stats.batch_seconds.clone());
        register(into, PUBLISH_SECONDS, stats.publish_seconds.clone());
        register(into, WORKERS, stats.workers.clone());
        register(into, WORKERS_BUSY, stats.workers_busy.clone());
        register(into, CLAIMED_LANES, stats.claimed_lanes.clone());
        register(into, LANES_ELSEWHERE, stats.lanes_elsewhere.clone());
        register(into, CLAIMS, stats.claims.clone());
        register(into, CLAIMS_EMPTY, stats.claims_empty.clone());
        register(into, SCANS, stats.scans.clone());
        register(into, SCANS_EMPTY, stats.scans_empty.clone());
    }

    fn register_failures(&mut self) {
        let (stats, into) = (&self.stats, &mut self.registry);
        register(into, HELD_TOPICS, stats.held_topics.clone());
        register(into, TOPIC_HELD, stats.topics_held.clone());
        register(into, HOLDS, stats.holds.clone());
        register(into, BLOCKED_KEYS, stats.blocked_keys.clone());
        register(into, PAUSED, stats.paused.clone());
        register(into, DEAD_LETTERS, stats.dead_letters.clone());
        register(into, REJECTED, stats.rejected.clone());
        register(into, SESSIONS_FAILED, stats.sessions_failed.clone());
        register(into, KAFKA_FAILURES, stats.kafka_failures.clone());
        register(into, POSTGRES_FAULTS, stats.postgres_faults.clone());
        register(into, POSTGRES_CONNECTIONS, stats.postgres_connections.clone());
        register(into, REAPER_FAULTS, stats.reaper_faults.clone());
        register(into, UNFINISHED, stats.unfinished_requests.clone());
        register(into, REQUEST_ERRORS, stats.client.errors.clone());
        register(into, REQUEST_RETRIES, stats.client.retries.clone());
        register(into, REQUEST_TIMEOUTS, stats.client.timeouts.clone());
        register(into, DISCONNECTS, stats.client.disconnects.clone());
    }

    fn register_costs(&mut self) {
        let (stats, into) = (&self.stats, &mut self.registry);
        register(into, TRANSACTIONS, stats.postgres_transactions.clone());
        register(into, REAPED, stats.reaped.clone());
        register(into, TABLE_BYTES, stats.table_bytes.clone());
        register(into, VACUUM_HELD_BACK, stats.vacuum_held_back.clone());
        register(into, TRANSACTION_ID_AGE, stats.transaction_id_age.clone());
        register(into, REAPER_BATCHES, stats.reaper_batches.clone());
        register(into, REQUESTS, stats.client.requests.clone());
        register(into, RESPONSES, stats.client.responses.clone());
        register(into, ROUND_TRIPS, stats.client.round_trip_seconds.clone());
        register(into, BROKER_SECONDS, stats.client.broker_seconds.clone());
        register(into, IN_FLIGHT, stats.client.in_flight.clone());
        register(into, WAITING, stats.client.waiting.clone());
        register(into, THROTTLE, stats.client.throttle_seconds.clone());
        register(into, QUEUED, stats.client.queued.clone());
        register(into, QUEUED_BYTES, stats.client.queued_bytes.clone());
        register(into, SENT_BYTES, stats.client.sent_bytes.clone());
        register(into, RECEIVED_BYTES, stats.client.received_bytes.clone());
        register(into, CONNECTS, stats.client.connects.clone());
        register(into, CPU, self.process.cpu_seconds.clone());
        register(into, RESIDENT, self.process.resident_bytes.clone());
        register(into, THREADS, self.process.threads.clone());
        register(into, OPEN_FDS, self.process.open_fds.clone());
        register(into, MAX_FDS, self.process.max_fds.clone());
        register(into, START_TIME, self.process.start_seconds.clone());
        register(into, BUILD, Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    }
}

/// Removes the unit from the name, because the encoder appends it, as well as `_total` and `_info`.
fn register(registry: &mut Registry, metric: Metric, collected: impl Collected) {
    let name = metric.family();
    let unit = match metric.unit() {
        Some("seconds") => Unit::Seconds,
        Some("bytes") => Unit::Bytes,
        _ => return registry.register(name, metric.help, collected),
    };
    let name = name.trim_end_matches(unit.as_str()).trim_end_matches('_');
    registry.register_with_unit(name, metric.help, unit, collected);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stats in which every metric with labels has a value.
    fn labelled() -> Arc<Stats> {
        let stats = Stats::new();
        stats.name_held(&[("gone".to_owned(), "stays".to_owned())]);
        stats.name_held(&[("events.order".to_owned(), "unknown-topic".to_owned())]);
        stats.count_topic("events.order", 2, 20);
        stats.count_failure("brokers-down");
        stats.table_bytes.get_or_create(&vec![("table", "outbox".to_owned())]).set(8_192);
        stats.count_rejected("record-too-large");
        stats.client.broker_seconds.get_or_create(&stats.client.brokers.label("1")).set(0.5);
        Arc::new(stats)
    }

    #[test]
    fn exactly_the_metrics_of_the_catalogue_are_shown() {
        let text = Metrics::new(&labelled()).text().unwrap();
        let described: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
        let wanted: Vec<&str> = CATALOGUE.iter().map(Metric::family).collect();
        let differs = described.iter().zip(&wanted).find(|(registered, wanted)| registered != wanted);
        assert!(
            described == wanted,
            "register each metric, in the order of the catalogue; with labels, `labelled` must give it a value: {differs:?}"
        );
        for metric in CATALOGUE {
            assert!(!metric.help.ends_with('.'), "the encoder appends the full stop: {}", metric.help);
            for sample in metric.samples() {
                let shown = text
                    .lines()
                    .any(|line| line.strip_prefix(&sample).is_some_and(|rest| rest.starts_with([' ', '{'])));
                assert!(shown, "no sample of {sample}: {text}");
            }
        }
        assert!(text.contains("outbox_relay_build_info{version=\""), "{text}");
        let held = "outbox_relay_topic_held{topic=\"events.order\",reason=\"unknown-topic\"} 1\n";
        assert!(text.contains(held) && !text.contains("gone"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn kinds_units_and_labels_match_the_catalogue() {
        let text = Metrics::new(&labelled()).text().unwrap();
        for metric in CATALOGUE {
            let family = metric.family();
            let kind = format!("# TYPE {family} {}\n", format!("{:?}", metric.kind).to_lowercase());
            assert!(text.contains(&kind), "not in /metrics: {kind}");
            let unit = text.lines().find_map(|line| line.strip_prefix(&format!("# UNIT {family} ")));
            assert_eq!(unit, metric.unit(), "{family}");
            let samples = text.lines().filter_map(|line| {
                let (name, rest) = line.split_once([' ', '{'])?;
                metric.samples().iter().any(|sample| sample == name).then_some(rest)
            });
            for sample in samples {
                let labels: Vec<&str> = sample
                    .rsplit_once('}')
                    .map_or("", |(labels, _)| labels)
                    .split(',')
                    .filter_map(|label| Some(label.split_once('=')?.0))
                    .filter(|label| *label != "le")
                    .collect();
                assert_eq!(labels, metric.labels, "{family}: {sample}");
            }
        }
    }

    #[test]
    fn topics_beyond_the_limit_are_counted_together() {
        let stats = Arc::new(Stats::new());
        for topic in 0..1_000 {
            stats.count_topic(&format!("events.{topic}"), 1, 10);
        }
        stats.count_topic("events.0", 1, 10);
        let text = Metrics::new(&stats).text().unwrap();
        let series =
            text.lines().filter(|line| line.starts_with("outbox_relay_topic_records_total{")).count();
        assert_eq!(series, 51, "{text}");
        assert!(text.contains("outbox_relay_topic_records_total{topic=\"other\"} 950\n"), "{text}");
        assert!(text.contains("outbox_relay_topic_bytes_total{topic=\"events.0\"} 20\n"), "{text}");
    }
}
