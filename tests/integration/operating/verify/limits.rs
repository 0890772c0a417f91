//! What cannot be judged is counted, and is no finding.

use rdkafka::topic_partition_list::Offset;
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

use super::delivery::{Delivery, EARLIER};

const LOSE_ONE: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
                        VALUES ('order', 'k1', 'Placed', now())";

/// Fails the test unless exactly this is not judged, and nothing is found.
#[track_caller]
fn assert_unjudged(report: &Value, expected: &[(&str, u64)]) {
    let all = report["not_judged"].as_object().unwrap();
    let counted: Vec<(&str, u64)> = all
        .iter()
        .map(|(name, count)| (name.as_str(), count.as_u64().unwrap()))
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(counted, expected, "{report:#}");
    assert_eq!(report["findings"], json!([]), "{report:#}");
}

#[tokio::test]
async fn compacted_expired_and_missing_topics_prove_no_loss() {
    let compacted = Delivery::in_topic("verify_compact", "json", &[("cleanup.policy", "compact")]).await;
    compacted.sql(LOSE_ONE).await;
    assert_eq!(compacted.verify(1)["lost"], 1, "no offset is missing, so nothing was compacted");
    compacted.outbox.cluster.publish_in_transaction(&compacted.topic(), "k1");
    assert_unjudged(&compacted.verify(0), &[("compacted", 1)]);
    compacted.drop().await;

    let delivery = Delivery::new("verify_expired").await;
    delivery.delete_records(&[0, 1, 2].map(|partition| (partition, Offset::End))).await;
    assert_unjudged(&delivery.verify(0), &[("expired", 40)]);

    delivery.outbox.cluster.delete(&delivery.topic()).await;
    assert_unjudged(&delivery.verify(0), &[("topic_missing", 40)]);
    delivery.drop().await;
}

/// The first record of an event expires, and a duplicate that follows later events of the key is left.
#[tokio::test]
async fn order_of_an_event_whose_first_record_has_expired_is_not_judged() {
    let delivery = Delivery::new("verify_first_gone").await;
    let records = delivery.records().await;
    let first = records.iter().find(|record| record.offset == 0).unwrap();
    delivery.publish(first, Duration::ZERO);
    let report = delivery.verify(0);
    assert_eq!((&report["duplicates"], &report["reordered"]), (&json!(1), &json!(0)), "{report:#}");

    delivery.delete_records(&[(first.partition, Offset::Offset(1))]).await;
    assert_unjudged(&delivery.verify(0), &[("order", 1)]);
    delivery.drop().await;
}

#[tokio::test]
async fn reaped_rows_dead_letters_and_requeued_events_are_no_findings() {
    let delivery = Delivery::new("verify_unjudged").await;
    // A dead letter whose record was stored after all, one that was discarded, and one that was requeued twice.
    let mut record = delivery.record(delivery.row(1).await.1).await;
    for (place, event_id) in [Uuid::from_u128(1), Uuid::from_u128(2)].into_iter().enumerate() {
        record.headers.retain(|(name, _)| name != "event_id");
        record.headers.push(("event_id".to_owned(), Some(event_id.to_string().into_bytes())));
        delivery.publish(&record, EARLIER);
        let sql = if place == 0 {
            "INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type,
                                                 created_at, topic, reason, error)
             VALUES (1000, '{event}', 'order', '1', 'X', now(), 'events.order', 'record-too-large', 'too large')"
        } else {
            "INSERT INTO app.outbox_act (act, dead_letter_id, outbox_id, event_id, aggregate_type, topic, reason)
             VALUES ('discard', 17, 1001, '{event}', 'order', 'events.order', 'record-too-large')"
        };
        delivery.sql(&sql.replace("{event}", &event_id.to_string())).await;
    }
    let (requeued, event_id) = delivery.row(2).await;
    delivery
        .sql(&format!(
            "INSERT INTO app.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at,
                                     sent_at)
             SELECT event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, now()
             FROM app.outbox WHERE id = {requeued}"
        ))
        .await;
    delivery.publish(&delivery.record(event_id).await, EARLIER);
    delivery.sql("INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'k1', 'Late')").await;
    assert_unjudged(&delivery.verify(0), &[("dead_letters", 2), ("unsent", 1)]);

    // Without the oldest row, the reaper may have deleted others too.
    delivery.sql("DELETE FROM app.outbox WHERE aggregate_type = 'ancient'").await;
    let unknown = Uuid::now_v7().to_string().into_bytes();
    record.headers.retain(|(name, _)| name != "event_id");
    record.headers.push(("event_id".to_owned(), Some(unknown)));
    delivery.publish(&record, EARLIER);
    assert_unjudged(&delivery.verify(0), &[("dead_letters", 2), ("reaped", 1), ("unsent", 1)]);
    delivery.drop().await;
}

/// PostgreSQL stores headers in more bytes than a record has for them.
#[tokio::test]
async fn events_that_barely_fit_into_a_record_are_judged() {
    let delivery = Delivery::new("verify_large").await;
    delivery
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
             SELECT 'order', 'k1', 'Placed', to_json(repeat('x', 998000)), jsonb_object_agg('h' || n, 'v')
             FROM generate_series(1, 200) AS n",
        )
        .await;
    delivery.deliver().await;
    let report = delivery.verify(0);
    assert_unjudged(&report, &[]);
    assert_eq!(report["events"], 41);
    delivery.drop().await;
}

/// The last offset of each partition has no record, and Kafka compacts nothing.
#[tokio::test]
async fn offsets_without_records_at_the_end_explain_no_loss() {
    let delivery = Delivery::new("verify_transaction").await;
    delivery.outbox.cluster.publish_in_transaction(&delivery.topic(), "k1");
    assert_unjudged(&delivery.verify(0), &[]);
    delivery.sql(LOSE_ONE).await;
    assert_eq!(delivery.verify(1)["lost"], 1);
    delivery.drop().await;
}

/// Copies are recognized by the recorded action, so a record from another producer is still a finding.
#[tokio::test]
async fn copies_in_a_verified_topic_are_counted() {
    let delivery = Delivery::new("verify_copies").await;
    let (order, copies) = (delivery.topic(), delivery.outbox.topic("copies"));
    delivery.outbox.cluster.create(&copies, 1, &[]).await;
    delivery.command(&["replay", "--key", "k1", "--to-topic", &copies]).succeeds();
    let both = format!("{order},{copies}");
    let report = delivery.verify_with(0, &["--topic", &both]);
    assert_unjudged(&report, &[("copies", 10)]);
    assert_eq!((&report["events"], &report["records"]), (&json!(40), &json!(50)), "{report:#}");
    delivery.sql("DELETE FROM app.outbox_act").await;
    assert_eq!(delivery.verify_with(1, &["--topic", &both])["altered"], 10);
    delivery.outbox.cluster.delete(&copies).await;
    delivery.drop().await;
}

#[tokio::test]
async fn only_events_of_the_range_and_of_the_topics_are_judged() {
    let delivery = Delivery::new("verify_range").await;
    delivery.sql(LOSE_ONE).await;
    delivery
        .sql("UPDATE app.outbox SET created_at = now() - interval '30 minutes' WHERE id = (SELECT max(id) FROM app.outbox)")
        .await;
    assert_eq!(delivery.verify(1)["lost"], 1);
    let later = delivery.verify_with(0, &["--since", "20m"]);
    assert_eq!((&later["events"], &later["lost"]), (&json!(40), &json!(0)), "{later:#}");
    let earlier = delivery.verify_with(1, &["--until", "20m"]);
    assert_eq!((&earlier["events"], &earlier["lost"]), (&json!(1), &json!(1)), "{earlier:#}");
    let other = delivery.outbox.topic("other");
    delivery.outbox.cluster.create(&other, 1, &[]).await;
    let other_topic = delivery.verify_with(0, &["--topic", &other]);
    assert_eq!((&other_topic["events"], &other_topic["records"]), (&json!(0), &json!(0)), "{other_topic:#}");
    delivery.outbox.cluster.delete(&other).await;
    delivery.drop().await;
}
