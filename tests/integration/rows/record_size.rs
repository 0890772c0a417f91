//! A topic that accepts only small records. A row that is too large is rejected alone, and its neighbors arrive.

use crate::support::consumer;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::topics;
use crate::support::wait::{STALLED, wait_until};

async fn dead_letters(outbox: &Outbox) -> Vec<(String, String)> {
    let sql = "SELECT aggregate_id, reason FROM app.outbox_dead_letter ORDER BY id";
    outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// 200 valid rows of 500 bytes and 20 keys, with one row of 50 KB in their middle, whose key is `order-7`.
async fn with_one_large_row(test: &str, large: Filling) -> Outbox {
    let mut outbox = Outbox::without_topics(test).await;
    outbox.create_topic_with("order", 1, &[("max.message.bytes", "20000")]).await;
    rows::insert(&outbox, "order", 20, 0..100, Filling::Random(460)).await;
    rows::insert(&outbox, "order", 20, 107..108, large).await;
    rows::insert(&outbox, "order", 20, 120..220, Filling::Random(460)).await;
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert!(!relay.log().contains("ERROR"), "the log must not contain client errors: {}", relay.log());
    outbox
}

#[tokio::test]
async fn only_a_row_too_large_for_its_topic_is_dead_lettered() {
    let outbox = with_one_large_row("too_large", Filling::Random(50_000)).await;
    assert_eq!(dead_letters(&outbox).await, [("order-7".to_owned(), "record-too-large".to_owned())]);
    let complete = "SELECT count(*) FROM app.outbox_dead_letter AS d JOIN app.ledger AS l USING (event_id)
                    WHERE d.payload = convert_to(l.value, 'UTF8') AND d.topic <> '' AND d.error <> ''";
    assert_eq!(outbox.count(complete).await, 1, "whole in the dead letters");

    let report = outbox.check().await;
    println!("{report}");
    assert_eq!(report.lost.len(), 1, "{report}");
    assert_eq!((report.lost[0].seq, report.reordered.len(), report.duplicates), (107, 0, 0), "{report}");
    assert!(report.phantom.is_empty() && report.altered.is_empty(), "{report}");
    assert_eq!(report.records, 200);
    outbox.drop().await;
}

#[tokio::test]
async fn row_that_fits_after_compression_is_delivered() {
    let outbox = with_one_large_row("fits", Filling::Letters(50_000)).await;
    assert_eq!(dead_letters(&outbox).await, []);
    assert_eq!(outbox.check().await.assert_exact().records, 201);
    outbox.drop().await;
}

#[tokio::test]
async fn many_oversized_rows_delay_no_other_row() {
    let mut outbox = Outbox::without_topics("many_large").await;
    outbox.create_topic_with("order", 3, &[("max.message.bytes", "20000")]).await;
    outbox.create_topic("other", 3).await;
    for block in 0..5 {
        let first = block * 100;
        rows::insert(&outbox, "order", 20, first..first + 90, Filling::Random(460)).await;
        rows::insert(&outbox, "order", 20, first + 90..first + 92, Filling::Random(30_000)).await;
        rows::insert(&outbox, "other", 20, first..first + 100, Filling::Random(30_000)).await;
    }
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(dead_letters(&outbox).await.len(), 10);
    let report = outbox.check().await;
    // A refusal ends its producer. If a request is half sent at that moment, librdkafka closes its connection and loses
    // the answers of requests for other partitions. These are sent again.
    println!("{} duplicates of {} records, after 10 refusals", report.duplicates, report.records);
    assert_eq!((report.lost.len(), report.reordered.len()), (10, 0), "{report}");
    assert!(report.phantom.is_empty() && report.altered.is_empty(), "{report}");
    assert!(report.lost.iter().all(|lost| lost.value.len() > 20_000), "{report}");
    outbox.drop().await;
}

/// The topic's limit applies even if it is above Kafka's default, if [kafka.properties] allows it.
#[tokio::test]
async fn row_above_the_default_limit_is_delivered_if_topic_and_properties_allow_it() {
    let mut outbox = Outbox::without_topics("above").await;
    outbox.create_topic_with("order", 1, &[("max.message.bytes", "3000000")]).await;
    rows::insert(&outbox, "order", 2, 0..4, Filling::Random(2_000_000)).await;
    let mut relay = outbox.relay().set_kafka_property("message.max.bytes", "3000000").start().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(dead_letters(&outbox).await, []);
    assert_eq!(consumer::read_all(&outbox.topics()).await.len(), 4);
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// Raises the limit as an operator does.
async fn raise_limit(outbox: &Outbox, kind: &str) {
    topics::alter(&outbox.topic(kind), "max.message.bytes", "1000000").await;
}

#[tokio::test]
async fn topic_that_rejects_consecutive_rows_is_held_instead_of_emptied() {
    let mut outbox = Outbox::without_topics("rejects").await;
    outbox.create_topic_with("order", 3, &[("max.message.bytes", "20000")]).await;
    outbox.create_topic("other", 3).await;
    rows::insert(&outbox, "order", 20, 0..60, Filling::Random(50_000)).await;
    rows::insert(&outbox, "other", 20, 0..1_000, Filling::Random(100)).await;
    let relay = outbox.relay().set("outbox", "rejections_before_hold", 5);
    let mut relay = relay.start().await;
    let held = "SELECT count(*) FROM app.outbox_hold WHERE reason = 'rejects-everything' AND probes > 1";
    wait_until("the topic is held and a probe has failed", STALLED, async || outbox.count(held).await == 1)
        .await;
    let others = "SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND aggregate_type = 'other'";
    wait_until("the other rows are published", STALLED, async || outbox.count(others).await == 0).await;
    // A worker that was judging when another one reached the limit may add one dead letter.
    let dead = dead_letters(&outbox).await.len();
    assert!((5..=7).contains(&dead), "{dead} dead letters");

    raise_limit(&outbox, "order").await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(
        dead_letters(&outbox).await.len(),
        dead,
        "no more dead letters once the topic accepts the rows"
    );
    let report = outbox.check().await;
    assert_eq!((report.lost.len(), report.reordered.len()), (dead, 0), "{report}");
    outbox.drop().await;
}

#[tokio::test]
async fn rejected_row_blocks_only_its_key_if_configured() {
    let mut outbox = Outbox::without_topics("block").await;
    outbox.create_topic_with("order", 1, &[("max.message.bytes", "20000")]).await;
    rows::insert(&outbox, "order", 20, 0..100, Filling::Random(460)).await;
    rows::insert(&outbox, "order", 20, 107..108, Filling::Random(50_000)).await;
    rows::insert(&outbox, "order", 20, 120..220, Filling::Random(460)).await;
    let relay = outbox.relay().set("outbox", "on_rejected", "block-key");
    let mut relay = relay.start().await;
    wait_until("only the blocked key waits", STALLED, async || outbox.unsent().await == 6).await;
    let waiting = "SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND aggregate_id = 'order-7'";
    assert_eq!(outbox.count(waiting).await, 6);
    let blocked = "SELECT count(*) FROM app.outbox_blocked_key AS b JOIN app.outbox AS o ON o.id = b.outbox_id
                   WHERE b.aggregate_id = 'order-7' AND b.reason = 'record-too-large' AND o.event_id = b.event_id";
    assert_eq!(outbox.count(blocked).await, 1);
    assert_eq!(dead_letters(&outbox).await, []);
    rows::insert(&outbox, "order", 20, 220..240, Filling::Random(460)).await;
    wait_until("new rows of other keys are published", STALLED, async || outbox.unsent().await == 7).await;

    raise_limit(&outbox, "order").await;
    assert_eq!(outbox.client.execute("DELETE FROM app.outbox_blocked_key", &[]).await.unwrap(), 1);
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    println!("{}", outbox.check().await.assert_sound());
    outbox.drop().await;
}
