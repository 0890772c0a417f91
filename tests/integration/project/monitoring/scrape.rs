//! A scrape of a relay on real servers. It contains every metric of the catalogue with correct values, and answers
//! every query of the dashboard.

use super::names::{queries, with_variables};
use super::prometheus::Prometheus;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use outbox_relay::admin::metrics::{CATALOGUE, Metric};

/// The values of the samples of this name, with any labels.
pub(crate) fn values(text: &str, name: &str) -> Vec<f64> {
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once("} ")?.1,
            None => rest.strip_prefix(' ')?,
        };
        Some(value.parse().unwrap())
    });
    samples.collect()
}

pub(crate) async fn scrape(relay: &RelayProcess) -> String {
    let (status, text) = relay.get("/metrics").await.unwrap();
    assert_eq!(status, 200);
    text
}

/// A topic with a limit on the request size. A producer that sends larger requests is replaced.
async fn replace_producer(outbox: &mut Outbox, kind: &str, request_bytes: usize) {
    outbox.create_topic_with(kind, 1, &[("max.message.bytes", &request_bytes.to_string())]).await;
    rows::insert(outbox, kind, 1, 0..1, Filling::Nothing).await;
    outbox.wait_until_sent(kind, STALLED).await;
}

/// A relay that has values for all metrics with labels: a missing topic, an event that no topic accepts, a replaced
/// producer, and 1,000 published events.
pub(crate) async fn busy(test: &str) -> (Outbox, RelayProcess) {
    let mut outbox = Outbox::create(test, 3).await;
    let relay = outbox.relay().set("admin", "listen", "127.0.0.1:0");
    let mut relay = relay.set_kafka_property("statistics.interval.ms", "200").start().await;
    rows::insert(&outbox, "order", 100, 0..1_000, Filling::Nothing).await;
    rows::insert(&outbox, "missing", 1, 0..1, Filling::Nothing).await;
    rows::insert(&outbox, "a b", 1, 0..1, Filling::Nothing).await;
    outbox.wait_until_sent("order", STALLED).await;
    replace_producer(&mut outbox, "small", 20_000).await;
    wait_until("the event without a topic is a dead letter", STALLED, async || {
        outbox.dead_letters().await == 1
    })
    .await;
    relay.wait_for_log("topic held").await;
    (outbox, relay)
}

#[tokio::test]
async fn every_metric_of_the_catalogue_is_in_a_scrape_with_correct_values() {
    let (outbox, relay) = busy("scrape").await;
    for sample in CATALOGUE.iter().flat_map(Metric::samples) {
        wait_until(
            &format!("{sample} has a value; with labels, `busy` must cause one"),
            STALLED,
            async || !values(&scrape(&relay).await, &sample).is_empty(),
        )
        .await;
    }
    let mut text = String::new();
    wait_until("all events are counted", STALLED, async || {
        text = scrape(&relay).await;
        values(&text, "outbox_relay_published_total") == [1_001.0]
    })
    .await;
    let mut records = values(&text, "outbox_relay_topic_records_total");
    records.sort_by(f64::total_cmp);
    assert_eq!(records, [1.0, 1_000.0], "{text}");
    assert_eq!(values(&text, "outbox_relay_rejected_total"), [1.0], "{text}");
    assert_eq!(values(&text, "outbox_relay_topic_held"), [1.0], "{text}");
    assert_eq!(values(&text, "outbox_relay_ready"), [1.0], "{text}");
    for positive in [
        "outbox_relay_latency_seconds_count",
        "outbox_relay_latency_seconds_sum",
        "outbox_relay_topic_bytes_total",
        "outbox_relay_claims_total",
        "outbox_relay_scans_empty_total",
        "outbox_relay_workers",
        "outbox_relay_postgres_transactions_total",
        "outbox_relay_kafka_requests_total",
        "outbox_relay_kafka_round_trip_seconds_total",
        "outbox_relay_kafka_sent_bytes_total",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
    ] {
        assert!(values(&text, positive)[0] > 0.0, "{positive}: {text}");
    }
    // The rows were inserted a moment ago, according to the clock that set their created_at.
    let late = values(&text, "outbox_relay_latency_seconds_sum")[0]
        / values(&text, "outbox_relay_latency_seconds_count")[0];
    assert!(late < 10.0, "{late} s: {text}");
    drop(relay);
    outbox.drop().await;
}

#[tokio::test]
async fn prometheus_accepts_a_scrape_and_every_panel_of_the_dashboard_has_data() {
    let (outbox, relay) = busy("dashboard").await;
    let prometheus = Prometheus::start(&[relay.address()]).await;
    wait_until("Prometheus has scraped the relay", STALLED, async || {
        prometheus.query("up{job=\"outbox-relay\"} == 1").await == [1.0]
    })
    .await;
    let mut next = 1_000;
    for query in queries().iter().filter(|query| !query.starts_with("label_values(")) {
        let query = with_variables(query);
        wait_until(&format!("{query} has a result"), STALLED, async || {
            // Rates need rows that are being published.
            rows::insert(&outbox, "order", 100, next..next + 10, Filling::Nothing).await;
            next += 10;
            !prometheus.query(&query).await.is_empty()
        })
        .await;
    }
    drop(prometheus);
    drop(relay);
    outbox.drop().await;
}

#[tokio::test]
async fn counters_of_the_kafka_client_continue_when_a_producer_is_replaced() {
    const NAME: &str = "outbox_relay_kafka_requests_total";
    let (mut outbox, relay) = busy("client_counters").await;
    let (mut before, mut topics, mut replaced) = (0.0, 0, 1.0);
    // Each producer starts its counters at zero. If a busy broker does not return the limit of a topic in time, none is replaced.
    wait_until("6 producers have been replaced", STALLED, async || {
        topics += 1;
        let limit = 20_000 - 1_000 * replaced as usize;
        replace_producer(&mut outbox, &format!("small-{topics}"), limit).await;
        let text = scrape(&relay).await;
        let now = values(&text, NAME).first().copied().unwrap_or_default();
        assert!(now >= before, "{now} after {before}: {text}");
        before = now;
        replaced = values(&text, "outbox_relay_sessions_failed_total")[0];
        replaced >= 6.0
    })
    .await;
    let until_then = before;
    wait_until("the last producer has sent requests", STALLED, async || {
        let now = values(&scrape(&relay).await, NAME)[0];
        assert!(now >= before, "{now} after {before}");
        before = now;
        now > until_then
    })
    .await;
    println!("{before} requests, {topics} topics");
    drop(relay);
    outbox.drop().await;
}
