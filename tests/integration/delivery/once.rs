//! `run --once` publishes all waiting rows and ends.

use crate::support::database::run;
use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use std::time::Duration;

/// Shorter than the time without rows after which a flow ends.
const INSERT_EVERY: Duration = Duration::from_millis(10);

#[tokio::test]
async fn run_once_publishes_everything_and_ends_with_0() {
    let outbox = Outbox::create("once", 3).await;
    rows::insert(&outbox, "order", 100, 0..20_000, Filling::Nothing).await;
    let mut relay = outbox.relay().spawn(&["run", "--once"]);
    assert!(relay.ended().await.success(), "{}", relay.log());
    assert_eq!(outbox.unsent().await, 0);
    outbox.check().await.assert_exact();
    // It also ends if there are no rows.
    let mut relay = outbox.relay().spawn(&["run", "--once"]);
    assert!(relay.ended().await.success(), "{}", relay.log());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn run_once_reports_the_events_that_it_could_not_send() {
    let outbox = Outbox::create("once_held", 3).await;
    rows::insert(&outbox, "missing", 10, 0..100, Filling::Nothing).await;
    rows::insert(&outbox, "order", 10, 0..1_000, Filling::Nothing).await;
    let mut relay = outbox.relay().spawn(&["run", "--once"]);
    assert!(relay.ended().await.success(), "{}", relay.log());
    assert!(relay.log().contains("1 held topic"), "{}", relay.log());
    assert!(relay.log().contains(&outbox.topic("missing")), "{}", relay.log());
    assert_eq!(outbox.unsent().await, 100);
    outbox.drop().await;
}

#[tokio::test]
async fn run_once_ends_with_69_if_a_server_is_unreachable() {
    let outbox = Outbox::create("once_away", 1).await;
    rows::insert(&outbox, "order", 10, 0..10, Filling::Nothing).await;
    let closed = Proxy::closed();
    let postgres = format!("postgres://postgres@{}/app", closed.address());
    for (relay, says) in [
        (outbox.relay().set("postgres", "url", postgres), "error: connecting to PostgreSQL"),
        (
            outbox.relay().set("kafka", "bootstrap_servers", closed.address()),
            "error: Kafka cannot be reached",
        ),
    ] {
        let mut relay = relay.spawn(&["run", "--once"]);
        assert_eq!(relay.ended().await.code(), Some(69), "{}", relay.log());
        assert!(relay.log().contains(says), "{}", relay.log());
    }
    assert_eq!(outbox.unsent().await, 10);
    outbox.drop().await;
}

#[tokio::test]
async fn run_once_ends_with_69_if_kafka_becomes_unavailable() {
    let outbox = Outbox::create("once_cut", 1).await;
    rows::insert(&outbox, "order", 10, 0..50_000, Filling::Nothing).await;
    let mut kafka = Proxy::open().await;
    let relay = outbox
        .relay()
        .set("kafka", "bootstrap_servers", kafka.address())
        .set("relay", "batch_size", 100)
        .set("relay", "publish_timeout", "2s");
    let mut relay = relay.spawn(&["run", "--once"]);
    let what = "the first rows are settled";
    wait_until(what, STALLED, async || outbox.unsent().await < 50_000).await;
    kafka.close().await;
    assert_eq!(relay.ended().await.code(), Some(69), "{}", relay.log());
    let mut relay = outbox.relay().spawn(&["run", "--once"]);
    assert!(relay.ended().await.success(), "{}", relay.log());
    println!("{}", outbox.check().await.assert_sound());
    outbox.drop().await;
}

/// The row is published, but stays unsent for as long as it is locked.
#[tokio::test]
async fn run_once_ends_with_1_if_a_row_stays_locked() {
    let outbox = Outbox::create("once_locked", 1).await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    let writer = outbox.database.connect().await;
    run(&writer, "BEGIN; UPDATE app.outbox SET headers = '{}' WHERE id = (SELECT min(id) FROM app.outbox)")
        .await;
    let mut relay = outbox.relay().set("relay", "publish_timeout", "5s").spawn(&["run", "--once"]);
    assert_eq!(relay.ended().await.code(), Some(1), "{}", relay.log());
    assert!(relay.log().contains("No event was recorded as sent for the publish_timeout"), "{}", relay.log());
    assert_eq!(outbox.unsent().await, 1, "the others are recorded");
    run(&writer, "ROLLBACK").await;
    let mut relay = outbox.relay().spawn(&["run", "--once"]);
    assert!(relay.ended().await.success(), "{}", relay.log());
    println!("{}", outbox.check().await.assert_sound());
    outbox.drop().await;
}

#[tokio::test]
async fn run_once_that_is_interrupted_does_not_report_that_everything_was_published() {
    let outbox = Outbox::create("once_stopped", 1).await;
    rows::insert(&outbox, "missing", 1, 0..1, Filling::Nothing).await;
    rows::insert(&outbox, "order", 10, 0..50_000, Filling::Nothing).await;
    let mut relay = outbox.relay().set("relay", "batch_size", 100).spawn(&["run", "--once"]);
    wait_until("the first rows are settled", STALLED, async || outbox.unsent().await < 49_000).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert!(outbox.unsent().await > 1, "it was interrupted too late");
    let log = relay.log();
    assert!(log.contains("Stopped on request") && !log.contains("All other events"), "{log}");
    outbox.drop().await;
}

/// With flows, the relay would keep its claim for as long as rows arrive.
#[tokio::test]
async fn run_once_ends_while_events_are_inserted() {
    let outbox = Outbox::create("once_live", 3).await;
    rows::insert(&outbox, "order", 50, 0..5_000, Filling::Nothing).await;
    let mut relay = outbox.relay().spawn(&["run", "--once"]);
    let mut inserted = 5_000;
    let insert = async {
        loop {
            rows::insert(&outbox, "order", 50, inserted..inserted + 1, Filling::Nothing).await;
            inserted += 1;
            tokio::time::sleep(INSERT_EVERY).await;
        }
    };
    let ended = tokio::select! {
        ended = relay.ended() => ended,
        () = insert => unreachable!(),
    };
    assert!(ended.success(), "{}", relay.log());
    assert!(outbox.unsent().await <= inserted - 5_000, "the waiting rows are sent");
    outbox.relay().command(&["run", "--once"]).succeeds();
    assert_eq!(outbox.unsent().await, 0);
    outbox.check().await.assert_exact();
    outbox.drop().await;
}
