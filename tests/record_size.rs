//! A topic that takes small records only: what is too large is found guilty alone, and its neighbours arrive.

use std::time::Duration;

use crate::support::consumer;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};

const STALLED: Duration = Duration::from_secs(30);

async fn dead_letters(outbox: &Outbox) -> Vec<(String, String)> {
    let sql = "SELECT aggregate_id, reason FROM app.outbox_dead_letter ORDER BY id";
    outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// 200 healthy rows of 500 bytes, of 20 keys, with one row of 50 KB in their middle, whose key is `order-7`.
async fn with_one_large_row(test: &str, large: Filling) -> Outbox {
    let mut outbox = Outbox::without_topics(test).await;
    outbox.create_topic_with("order", 1, &[("max.message.bytes", "20000")]).await;
    rows::insert(&outbox, "order", 20, 0..100, Filling::Random(460)).await;
    rows::insert(&outbox, "order", 20, 107..108, large).await;
    rows::insert(&outbox, "order", 20, 120..220, Filling::Random(460)).await;
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    outbox
}

#[tokio::test]
async fn a_row_too_large_for_its_topic_is_dead_lettered_and_nobody_else() {
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
async fn a_row_that_fits_once_it_is_compressed_is_delivered() {
    let outbox = with_one_large_row("fits", Filling::Letters(50_000)).await;
    assert_eq!(dead_letters(&outbox).await, []);
    assert_eq!(outbox.check().await.assert_exact().records, 201);
    outbox.drop().await;
}

#[tokio::test]
async fn many_rows_too_large_stop_nobody() {
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
    // A refusal ends the producer that it came to. librdkafka then drops its connection if a request is half sent, and
    // with it the answers for what is on its way to other partitions: that much is sent again.
    println!("{} duplicates of {} records, for 10 refusals", report.duplicates, report.records);
    assert_eq!((report.lost.len(), report.reordered.len()), (10, 0), "{report}");
    assert!(report.phantom.is_empty() && report.altered.is_empty(), "{report}");
    assert!(report.lost.iter().all(|lost| lost.value.len() > 20_000), "{report}");
    outbox.drop().await;
}

/// The limit is the topic's, also when it is above Kafka's default and [kafka.properties] allows it.
#[tokio::test]
async fn a_row_above_the_default_limit_is_delivered_when_topic_and_properties_allow_it() {
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
