//! The catalogue of the metrics: every name once, with what it means.
//!
//! OpenMetrics conventions: seconds as the base unit, `_total` behind counters. No label but that of the build, so the
//! number of series is fixed.

use crate::relay::stats::Stats;
use prometheus_client::encoding::text;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric as Collected, Registry, Unit};

/// One metric, as a dashboard names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name of its samples; a histogram's have `_bucket`, `_sum` and `_count` behind it.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
}

macro_rules! catalogue {
    ($($constant:ident = $name:literal, $help:literal;)*) => {
        $(const $constant: Metric = Metric { name: $name, help: $help };)*

        /// All metrics.
        pub const CATALOGUE: &[Metric] = &[$($constant),*];
    };
}

catalogue! {
    OLDEST_UNSENT = "outbox_relay_oldest_unsent_seconds",
        "Age of the oldest unsent row by the clock of the database, held topics included; measured every 5 s";
    BACKLOG = "outbox_relay_backlog_rows",
        "Unsent rows, but for those of held topics: exact up to 10000, above that the span of their ids";
    HELD_TOPICS = "outbox_relay_held_topics",
        "Topics that cannot be written to, whose rows wait; status names them with the reason";
    TOPIC_HELD = "outbox_relay_topic_held",
        "1 for each held topic, with the reason; at most 100 are named";
    BLOCKED_KEYS = "outbox_relay_blocked_keys",
        "Keys whose first event Kafka rejected under on_rejected = block-key, and whose events wait";
    PAUSED = "outbox_relay_paused",
        "Pauses that operators have begun and not ended: of everything, of a topic, of a key; status names them";
    UNSETTLED = "outbox_relay_unsettled_rows",
        "Rows that Kafka has acknowledged and that are not recorded as sent yet";
    KAFKA_UP = "outbox_relay_kafka_up",
        "1 while Kafka answers";
    POSTGRES_UP = "outbox_relay_postgres_up",
        "1 while Postgres answers";
    PUBLISHED = "outbox_relay_published_total",
        "Rows that were settled as sent";
    RECOVERED = "outbox_relay_recovered_total",
        "Published rows that were settled without sending them again, because Kafka had acknowledged them before";
    DEAD_LETTERS = "outbox_relay_dead_letters_total",
        "Rows that were moved to the dead letters";
    REAPED = "outbox_relay_reaped_total",
        "Rows that were deleted because they were sent longer ago than the retention";
    BATCH_ROWS = "outbox_relay_batch_rows",
        "Rows in a batch";
    BATCH_SECONDS = "outbox_relay_batch_seconds",
        "From the claim of a batch to its confirmed COMMIT";
    PUBLISH_SECONDS = "outbox_relay_publish_seconds",
        "From the first row of a batch handed to the producer to the last acknowledgement";
    SESSIONS_FAILED = "outbox_relay_sessions_failed_total",
        "Producers that were replaced after a failure";
    POSTGRES_CONNECTIONS = "outbox_relay_postgres_connections_total",
        "Connections to Postgres that were made, reconnects included";
    POSTGRES_FAULTS = "outbox_relay_postgres_faults_total",
        "Claims that a fault of Postgres ended; their rows are claimed again";
    BUILD = "outbox_relay_build_info",
        "The version that runs";
}

/// What `/metrics` shows.
pub struct Metrics(Registry);

impl Metrics {
    /// The figures of this process.
    pub fn new(stats: &Stats) -> Metrics {
        let mut registry = Registry::default();
        let into = &mut registry;
        register(into, OLDEST_UNSENT, stats.oldest_seconds.clone());
        register(into, BACKLOG, stats.backlog.clone());
        register(into, HELD_TOPICS, stats.held_topics.clone());
        register(into, TOPIC_HELD, stats.topics_held.clone());
        register(into, BLOCKED_KEYS, stats.blocked_keys.clone());
        register(into, PAUSED, stats.paused.clone());
        register(into, UNSETTLED, stats.unsettled.clone());
        register(into, KAFKA_UP, stats.kafka.up.clone());
        register(into, POSTGRES_UP, stats.postgres.up.clone());
        register(into, PUBLISHED, stats.published.clone());
        register(into, RECOVERED, stats.recovered.clone());
        register(into, DEAD_LETTERS, stats.dead_letters.clone());
        register(into, REAPED, stats.reaped.clone());
        register(into, BATCH_ROWS, stats.batch_rows.clone());
        register(into, BATCH_SECONDS, stats.batch_seconds.clone());
        register(into, PUBLISH_SECONDS, stats.publish_seconds.clone());
        register(into, SESSIONS_FAILED, stats.sessions_failed.clone());
        register(into, POSTGRES_CONNECTIONS, stats.postgres_connections.clone());
        register(into, POSTGRES_FAULTS, stats.postgres_faults.clone());
        register(into, BUILD, Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        Metrics(registry)
    }

    /// All of them as OpenMetrics text.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// The encoder puts the unit, and what tells a counter or an info, behind the name by itself.
fn register(registry: &mut Registry, metric: Metric, collected: impl Collected) {
    let name = metric.name.trim_end_matches("_total").trim_end_matches("_info");
    match name.strip_suffix("_seconds") {
        Some(name) => registry.register_with_unit(name, metric.help, Unit::Seconds, collected),
        None => registry.register(name, metric.help, collected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_the_catalogue_is_shown_and_no_other() {
        let stats = Stats::new();
        stats.name_held(&[("gone".to_owned(), "stays".to_owned())]);
        stats.name_held(&[("events.order".to_owned(), "unknown-topic".to_owned())]);
        let text = Metrics::new(&stats).text().unwrap();
        let described: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
        let family = |metric: &Metric| metric.name.trim_end_matches("_total").trim_end_matches("_info");
        let wanted: Vec<&str> = CATALOGUE.iter().map(family).collect();
        assert_eq!(described, wanted, "{text}");
        for metric in CATALOGUE {
            let shown = text.lines().any(|line| line.starts_with(metric.name));
            assert!(shown, "{}: {text}", metric.name);
            assert!(!metric.help.ends_with('.'), "the encoder ends the sentence: {}", metric.help);
        }
        assert!(text.contains("outbox_relay_build_info{version=\""), "{text}");
        let held = "outbox_relay_topic_held{topic=\"events.order\",reason=\"unknown-topic\"} 1\n";
        assert!(text.contains(held) && !text.contains("gone"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
