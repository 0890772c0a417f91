//! Connections to Kafka that lose data without ever closing.

use std::time::Duration;

use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers::{Load, Writers};

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
