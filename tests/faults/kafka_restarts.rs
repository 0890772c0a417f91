//! Kafka is killed, stopped or unavailable. Rows wait and are published soon after it is available again.

use std::time::{Duration, Instant};

use crate::support::consumer;
use crate::support::kafka_proxy::Proxy;
use crate::support::kafka_server::KafkaServer;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers::{Load, Writers};

const RESUMED_WITHIN: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;

/// A relay, and writers that continue whatever happens to Kafka.
async fn in_flow(kafka: &KafkaServer, test: &str, publish_timeout: &str) -> (Outbox, RelayProcess, Writers) {
    in_flow_with(kafka, test, &[("publish_timeout", publish_timeout)]).await
}

async fn in_flow_with(
    kafka: &KafkaServer,
    test: &str,
    settings: &[(&str, &str)],
) -> (Outbox, RelayProcess, Writers) {
    let mut outbox = Outbox::on(&kafka.cluster(), test).await;
    outbox.create_topic("order", 6).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let set = |relay: Relay, (name, value): &(&str, &str)| relay.set("relay", name, *value);
    let relay = settings.iter().fold(outbox.relay(), set).start().await;
    let writers = Writers::start(
        &outbox,
        &keys,
        Load { writers: 2, pause: Duration::from_millis(20), ..Load::default() },
    )
    .await;
    (outbox, relay, writers)
}

async fn assert_resumed(outbox: &Outbox, what: &str) {
    let resumed = outbox.wait_until_resumed(STALLED).await;
    assert_within(&format!("{what}: publishing resumed after Kafka answered again"), resumed, RESUMED_WITHIN);
}

/// Returns the number of duplicates.
async fn assert_whole(outbox: Outbox, mut relay: RelayProcess, writers: Writers) -> usize {
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    let dead = outbox.dead_letters().await;
    print!("dead letters {dead}, {report}");
    report.assert_sound();
    assert_eq!(dead, 0);
    outbox.drop_database().await;
    report.duplicates
}

#[tokio::test]
async fn kafka_killed_during_a_batch_loses_and_reorders_nothing() {
    let mut kafka = KafkaServer::start().await;
    let (outbox, relay, writers) = in_flow(&kafka, "kafka_killed", "45s").await;
    for kill in 1..=3 {
        outbox.wait_until_settled(2_000, STALLED).await;
        outbox.wait_until_publishing(&relay).await;
        let gone = Instant::now();
        kafka.kill();
        kafka.restart().await;
        println!("Kafka was unavailable for {:.1?}", gone.elapsed());
        assert_resumed(&outbox, &format!("kill {kill}")).await;
    }
    assert_whole(outbox, relay, writers).await;
}

/// A broker that stops may have stored a request without answering it. The same producer sends it again, and the broker recognizes
/// it. After two thirds of `takeover_timeout` without an answer, another producer does: a busy machine may start Kafka later than that.
#[tokio::test]
async fn kafka_stopped_and_started_repeats_nothing() {
    let mut kafka = KafkaServer::start().await;
    let patient = [("publish_timeout", "300s"), ("takeover_timeout", "300s")];
    let (outbox, relay, writers) = in_flow_with(&kafka, "kafka_stopped", &patient).await;
    for stop in 1..=2 {
        outbox.wait_until_settled(2_000, STALLED).await;
        kafka.stop().await;
        kafka.restart().await;
        assert_resumed(&outbox, &format!("stop {stop}")).await;
    }
    let duplicates = assert_whole(outbox, relay, writers).await;
    assert_eq!(duplicates, 0);
}

/// The duration of the outage. `KAFKA_OUTAGE_SECONDS` sets a longer one.
fn outage() -> Duration {
    let seconds = std::env::var("KAFKA_OUTAGE_SECONDS").map_or(20, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn kafka_outage_costs_only_time() {
    let mut kafka = KafkaServer::start().await;
    let (outbox, relay, writers) = in_flow(&kafka, "kafka_outage", "5s").await;
    outbox.wait_until_settled(5_000, STALLED).await;
    outbox.wait_until_publishing(&relay).await;
    let resident = relay.resident();
    kafka.kill();
    let gone = Instant::now();
    let what = "the relay has released all claims";
    let released = wait_until(what, STALLED, async || {
        outbox.held_open(&relay).await == 0 && relay.log().contains("kafka unavailable")
    })
    .await;
    let (mut checks, mut grown) = (0, 0);
    while gone.elapsed() < outage() {
        assert_eq!(outbox.held_open(&relay).await, 0, "check {checks}");
        grown = grown.max(relay.resident().saturating_sub(resident));
        checks += 1;
    }
    let waiting = outbox.unsent().await;
    println!(
        "all claims released after {released:.1?}; confirmed by {checks} checks until {:.1?}",
        gone.elapsed()
    );
    println!("{waiting} rows wait, {} MiB more resident", grown / MIB);
    assert!(waiting > 1_000, "{waiting}");
    assert!(grown < 16 * MIB, "{grown}");
    kafka.restart().await;
    assert_resumed(&outbox, "outage").await;
    assert_whole(outbox, relay, writers).await;
}

/// The names of the brokers lead to another cluster, in which a broker and a topic have the same names. Without a failure, the
/// client sends the unacknowledged records again, and that cluster stores and acknowledges them.
#[tokio::test]
async fn rows_that_another_cluster_acknowledges_stay_unsent() {
    let kafka = KafkaServer::start().await;
    let outbox = Outbox::create("kafka_moved", 1).await;
    let mut proxy = Proxy::open().await;
    let mut relay = outbox.relay().set("kafka", "bootstrap_servers", proxy.address()).start().await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    let (other, topic) = (kafka.cluster(), outbox.topic("order"));
    other.create(&topic, 1, &[]).await;
    proxy.stall().await;
    rows::insert(&outbox, "order", 10, 100..200, Filling::Nothing).await;
    outbox.wait_until_publishing(&relay).await;
    proxy.move_to(&kafka.brokers[0].address()).await;
    assert_eq!(relay.ended().await.code(), Some(78), "{}", relay.log());
    assert!(relay.log().contains("another Kafka cluster"), "{}", relay.log());
    println!("the other cluster has {} records", consumer::read_all_of(&other, &[topic]).await.len());
    assert_eq!(outbox.unsent().await, 100, "{}", relay.log());
    outbox.drop().await;
}
