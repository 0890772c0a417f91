//! Connections to Kafka that lose data without ever closing.

use std::time::Duration;

use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::wait::{STALLED, allowance, assert_within, wait_until};
use crate::support::writers::{Load, Writers, write};

const PUBLISH_TIMEOUT: Duration = Duration::from_secs(4);
/// The time that an attempt needs to abandon a silent broker, in addition to `publish_timeout`.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
const WORKERS: usize = 2;
const BATCH_SIZE: usize = 1_000;

async fn lose(test: &str, requests: bool, answers: bool) {
    let outbox = Outbox::create(test, 6).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let mut kafka = Proxy::open().await;
    let mut relay = outbox
        .relay()
        .set("kafka", "bootstrap_servers", kafka.address())
        .set("relay", "publish_timeout", format!("{}s", PUBLISH_TIMEOUT.as_secs()))
        .set("relay", "workers", WORKERS as i64)
        .set("relay", "batch_size", BATCH_SIZE as i64)
        .start()
        .await;
    let load = Load { writers: 2, pause: Duration::from_millis(20), ..Load::default() };
    let writers = Writers::start(&outbox, &keys, load).await;
    let faults = 2;
    for fault in 1..=faults {
        outbox.wait_until_settled(2_000, STALLED).await;
        outbox.wait_until_publishing(&relay).await;
        kafka.lose(requests, answers).await;
        let what = "the relay has released all claims";
        let released = wait_until(what, STALLED, async || {
            outbox.held_open(&relay).await == 0 && relay.log().contains("kafka unavailable")
        })
        .await;
        kafka.resume().await;
        let resumed = outbox.wait_until_resumed(STALLED).await;
        let limit = PUBLISH_TIMEOUT + RELEASE_TIMEOUT;
        assert_within(&format!("{test} {fault}: all claims released"), released, limit);
        assert_within("publishing resumed", resumed, RESUMED_WITHIN);
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    let dead = outbox.dead_letters().await;
    print!("{test}: dead letters {dead}, {report}");
    assert!(report.assert_sound().duplicates <= faults * WORKERS * BATCH_SIZE, "{report}");
    assert_eq!(dead, 0);
    outbox.drop().await;
}

#[tokio::test]
async fn lost_requests_cost_only_time() {
    lose("requests_lost", true, false).await;
}

#[tokio::test]
async fn lost_answers_cost_only_time_and_recognizable_duplicates() {
    lose("answers_lost", false, true).await;
}

#[tokio::test]
async fn silence_in_both_directions_costs_only_time() {
    lose("both_lost", true, true).await;
}

/// How long an event may be delayed when the connections of the relay have become silent while new ones work.
fn silent_limit() -> Duration {
    Duration::from_secs(if allowance() == 1 { 10 } else { 20 })
}

/// Waits until all events are sent. `/readyz` must stay up.
async fn drained_while_ready(outbox: &Outbox, relay: &RelayProcess) -> Duration {
    wait_until("the event is sent", STALLED, async || {
        assert_eq!(relay.not_ready().await, None);
        outbox.unsent().await == 0
    })
    .await
}

/// A load balancer, a firewall or NAT forgets the connections of a relay without closing them.
async fn forget_connections(workers: i64) {
    let mut outbox = Outbox::create(&format!("forgotten_{workers}"), 3).await;
    outbox.create_topic("other", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let others = outbox.add_aggregates("other", 1).await;
    // With a backlog, every worker publishes to the topic.
    for _ in 0..50 {
        write(&outbox.client, &keys).await;
    }
    let kafka = Proxy::open().await;
    let mut relay = outbox
        .relay()
        .set("kafka", "bootstrap_servers", kafka.address())
        .set("relay", "workers", workers)
        .set("relay", "batch_size", 100)
        .set("admin", "listen", "127.0.0.1:0")
        .start()
        .await;
    outbox.wait_until_drained(STALLED).await;
    for (what, keys) in [("a known topic", &keys[..1]), ("a new topic", &others[..])] {
        kafka.silence_connections();
        write(&outbox.client, keys).await;
        let delayed = drained_while_ready(&outbox, &relay).await;
        println!("{workers} workers, {what}: delayed {delayed:.1?}");
        assert!(delayed < silent_limit(), "{workers} workers, {what}: delayed {delayed:?}");
    }
    assert!(!relay.log().contains("kafka unavailable"));
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    assert_eq!(report.assert_sound().duplicates, 0, "{report}");
    outbox.drop().await;
}

#[tokio::test]
async fn one_worker_replaces_forgotten_connections() {
    forget_connections(1).await;
}

#[tokio::test]
async fn two_workers_replace_forgotten_connections() {
    forget_connections(2).await;
}

#[tokio::test]
async fn four_workers_replace_forgotten_connections() {
    forget_connections(4).await;
}
