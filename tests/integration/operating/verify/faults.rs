//! Each fault is found, and nothing else.

use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

use super::delivery::{Delivery, EARLIER, PARTITIONS};
use crate::support::consumer::Record;

#[tokio::test]
async fn event_without_a_record_is_lost() {
    let delivery = Delivery::new("verify_lost").await;
    delivery
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
             VALUES ('order', 'k1', 'Placed', now())",
        )
        .await;
    let (id, event_id) = delivery.row(41).await;
    let found = delivery.finds(1, &["lost"]);
    assert_eq!(found[0]["outbox_id"], id);
    assert_eq!(found[0]["event_id"], event_id.to_string());
    assert_eq!(found[0]["topic"], delivery.topic());
    delivery.drop().await;
}

#[tokio::test]
async fn repeated_record_is_a_duplicate_and_breaks_no_guarantee() {
    let delivery = Delivery::new("verify_duplicate").await;
    let (id, event_id) = delivery.row(1).await;
    delivery.publish(&delivery.record(event_id).await, Duration::ZERO);
    let found = delivery.finds(0, &["duplicate"]);
    assert_eq!(found[0]["outbox_id"], id);
    delivery.drop().await;
}

/// The ids of two events of a key are exchanged, so their records have the wrong order.
#[tokio::test]
async fn event_after_a_later_one_of_its_key_is_reordered() {
    let delivery = Delivery::new("verify_reordered").await;
    let ((first, later_event), (second, earlier_event)) = (delivery.row(9).await, delivery.row(13).await);
    delivery
        .sql(&format!(
            "CREATE TABLE app.taken AS SELECT * FROM app.outbox WHERE id IN ({first}, {second});
             DELETE FROM app.outbox WHERE id IN ({first}, {second});
             INSERT INTO app.outbox OVERRIDING SYSTEM VALUE
             SELECT {first} + {second} - id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                    created_at, sent_at
             FROM app.taken"
        ))
        .await;
    let found = delivery.finds(1, &["reordered"]);
    assert_eq!(found[0]["outbox_id"], first);
    assert_eq!(found[0]["event_id"], earlier_event.to_string());
    assert_ne!(earlier_event, later_event);
    delivery.drop().await;
}

#[tokio::test]
async fn altered_parts_of_records_are_named() {
    let delivery = Delivery::new("verify_altered").await;
    let (payload, _) = delivery.row(1).await;
    let (tombstone, _) = delivery.row(5).await;
    let (header, _) = delivery.row(2).await;
    let (created, _) = delivery.row(3).await;
    let (kind, _) = delivery.row(4).await;
    delivery
        .sql(&format!(
            "UPDATE app.outbox SET payload = '{{\"b\": 1}}' WHERE id = {payload};
             UPDATE app.outbox SET payload = 'null' WHERE id = {tombstone};
             UPDATE app.outbox SET headers = headers || '{{\"trace\": \"b\"}}' WHERE id = {header};
             UPDATE app.outbox SET created_at = created_at + interval '1 microsecond' WHERE id = {created};
             UPDATE app.outbox SET event_type = 'Paid' WHERE id = {kind}"
        ))
        .await;
    let found = delivery.finds(1, &["altered"; 5]);
    let parts = |id: i64| &found.iter().find(|finding| finding["outbox_id"] == id).unwrap()["parts"];
    for (id, expected) in [
        (payload, "value"),
        (tombstone, "value"),
        (header, "headers"),
        (created, "headers"),
        (kind, "headers"),
    ] {
        assert_eq!(parts(id), &json!([expected]), "row {id}: {found:#?}");
    }
    delivery.drop().await;
}

#[tokio::test]
async fn record_with_another_key_or_partition_is_altered() {
    let delivery = Delivery::new("verify_place").await;
    let copies = |record: &Record| [record.clone(), record.clone()];
    let [mut other_key, mut other_partition] = copies(&delivery.record(delivery.row(1).await.1).await);
    other_key.key = Some(b"another".to_vec());
    other_partition.partition = (other_partition.partition + 1) % PARTITIONS;
    delivery.publish(&other_key, Duration::ZERO);
    delivery.publish(&other_partition, Duration::ZERO);
    let found = delivery.finds(1, &["altered", "altered", "duplicate", "duplicate"]);
    let mut parts: Vec<_> = found[..2].iter().map(|finding| finding["parts"].to_string()).collect();
    parts.sort();
    assert_eq!(parts, [r#"["key"]"#, r#"["partition"]"#]);
    delivery.drop().await;
}

#[tokio::test]
async fn record_that_belongs_to_no_event_is_unknown() {
    let delivery = Delivery::new("verify_unknown").await;
    let mut foreign = delivery.record(delivery.row(1).await.1).await;
    foreign.headers.retain(|(name, _)| name != "event_id");
    delivery.publish(&foreign, EARLIER);
    let event_id = Uuid::now_v7();
    foreign.headers.push(("event_id".to_owned(), Some(event_id.to_string().into_bytes())));
    delivery.publish(&foreign, EARLIER);
    let found = delivery.finds(1, &["unknown", "unknown"]);
    assert_eq!(found[0]["event_id"], json!(null));
    assert_eq!(found[1]["event_id"], event_id.to_string());
    let allowed = delivery.verify_with(0, &["--allow-unknown"]);
    assert_eq!((&allowed["unknown"], &allowed["broken"]), (&json!(2), &json!(0)));
    delivery.drop().await;
}
