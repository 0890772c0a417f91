//! During a Kafka outage, no transaction stays open and nothing is lost. Afterwards, the rows are published in order.

use std::time::{Duration, Instant};

use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers::{Load, Writers};

const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// How long a state is watched that must not change.
const WATCHED: Duration = Duration::from_secs(3);

fn behind(outbox: &Outbox, kafka: &Proxy) -> Relay {
    // The reaper deletes old rows independently of Kafka.
    outbox.relay().set("kafka", "bootstrap_servers", kafka.address()).set("reaper", "enabled", false)
}

/// Checks as often as possible.
async fn assert_nothing_is_open(outbox: &Outbox, relay: &RelayProcess) {
    let begun = Instant::now();
    let mut checks = 0;
    while begun.elapsed() < WATCHED {
        assert_eq!(outbox.held_open(relay).await, 0, "check {checks}");
        checks += 1;
    }
    println!("{checks} checks in {WATCHED:?} found no open claim and no open transaction");
}

#[tokio::test]
async fn without_kafka_nothing_is_claimed_and_rows_are_published_soon_after_it_starts() {
    let outbox = Outbox::create("no_kafka", 3).await;
    let mut kafka = Proxy::closed();
    let mut relay = behind(&outbox, &kafka).start().await;
    rows::insert(&outbox, "order", 10, 0..1_000, Filling::Nothing).await;
    relay.wait_for_log("kafka unavailable, retrying: ").await;
    wait_until("no transaction is open", STALLED, async || outbox.held_open(&relay).await == 0).await;
    assert_nothing_is_open(&outbox, &relay).await;

    kafka.resume().await;
    let begun = Instant::now();
    outbox.wait_until_drained(STALLED).await;
    assert_within("drained after Kafka became available", begun.elapsed(), RESUMED_WITHIN);
    relay.wait_for_log("kafka available again").await;
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn kafka_lost_during_a_batch_releases_everything_at_publish_timeout_and_loses_nothing() {
    let outbox = Outbox::create("cut", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let mut kafka = Proxy::open().await;
    let mut relay = behind(&outbox, &kafka).set("relay", "publish_timeout", "3s").start().await;
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    let mut drained = 0;
    for _ in 0..3 {
        let sent = "SELECT count(*) FROM app.outbox WHERE sent_at IS NOT NULL";
        wait_until("rows are published", STALLED, async || outbox.count(sent).await > drained + 2_000).await;
        kafka.close().await;
        let waited = wait_until("no transaction is open", STALLED, async || {
            outbox.held_open(&relay).await == 0 && relay.log().contains("kafka unavailable")
        })
        .await;
        println!("no transaction was open {waited:?} after Kafka became unavailable");
        wait_until("no transaction is open", STALLED, async || outbox.held_open(&relay).await == 0).await;
        kafka.resume().await;
        drained = outbox.count(sent).await;
        let waited =
            wait_until("publishing has resumed", STALLED, async || outbox.count(sent).await > drained).await;
        assert_within("publishing resumed", waited, RESUMED_WITHIN);
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    println!("{}", outbox.check().await.assert_sound());
    outbox.drop().await;
}

#[tokio::test]
async fn connection_cut_for_less_than_publish_timeout_repeats_nothing() {
    let outbox = Outbox::create("short_cut", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let mut kafka = Proxy::open().await;
    let mut relay = behind(&outbox, &kafka).start().await;
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    let sent = "SELECT count(*) FROM app.outbox WHERE sent_at IS NOT NULL";
    for _ in 0..5 {
        let before = outbox.count(sent).await;
        wait_until("rows are published", STALLED, async || outbox.count(sent).await > before + 2_000).await;
        kafka.close().await;
        kafka.resume().await;
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    println!("{}", outbox.check().await.assert_exact());
    outbox.drop().await;
}

/// The claim is lost while its rows are being sent. Their reports must not be mistaken for reports of the next batch,
/// which is from another lane.
#[tokio::test]
async fn claim_lost_while_kafka_is_slow_repeats_nothing() {
    let mut outbox = Outbox::create("slow", 3).await;
    outbox.create_topic("late", 3).await;
    let mut kafka = Proxy::open().await;
    let relay = behind(&outbox, &kafka).set("relay", "workers", 1).set("relay", "takeover_timeout", "1s");
    let mut relay = relay.start().await;
    rows::insert(&outbox, "order", 64, 0..64, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;

    // The session does not know this topic. Its lookup waits, and the connection is closed meanwhile.
    kafka.stall().await;
    rows::insert(&outbox, "late", 1_000, 0..5_000, Filling::Nothing).await;
    wait_until("a waiting claim is ended", STALLED, async || outbox.end_waiting_claims().await == 1).await;
    // Long enough for the claim's next keep-alive, but not for the lookup to time out.
    tokio::time::sleep(Duration::from_secs(1)).await;
    kafka.resume().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    println!("{}", outbox.check().await.assert_exact());
    outbox.drop().await;
}

/// Without events, only the connections of idle sessions show that Kafka is unavailable.
#[tokio::test]
async fn outage_without_events_is_reported_and_ends_by_itself() {
    let outbox = Outbox::create("idle_cut", 1).await;
    let mut kafka = Proxy::open().await;
    let relay = behind(&outbox, &kafka).set("admin", "listen", "127.0.0.1:0");
    let mut relay = relay.start().await;
    rows::insert(&outbox, "order", 10, 0..10, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    kafka.close().await;
    wait_until("the relay is not ready", STALLED, async || relay.not_ready().await.is_some()).await;
    kafka.resume().await;
    wait_until("the relay is ready again", STALLED, async || relay.not_ready().await.is_none()).await;
    rows::insert(&outbox, "order", 10, 10..20, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}
