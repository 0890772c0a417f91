use pg_outbox::testing::{self, Error, Filter};
use pg_outbox::{Event, Outbox, OutboxEvent};
use serde::{Deserialize, Serialize};

use crate::database::Database;

async fn outbox(db: &Database, payload: &str) -> Outbox {
    let create = format!(
        "CREATE TABLE {}.own (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, aggregate_type text,
             aggregate_id text, event_type text, payload {payload}, headers jsonb, sent_at timestamptz)",
        db.schema
    );
    db.client.batch_execute(&create).await.unwrap();
    Outbox::new(&format!("{}.own", db.schema)).unwrap()
}

fn order(event_type: &str, outbox: &Outbox) -> Filter {
    Filter::event("order", event_type).outbox(outbox)
}

#[tokio::test]
async fn a_test_finds_the_events_of_its_transaction() {
    for payload in ["json", "jsonb", "bytea"] {
        let mut db = Database::new().await;
        let outbox = outbox(&db, payload).await;
        let tx = db.client.transaction().await.unwrap();
        let event = Event::new("order", 42, "OrderPlaced").bytes(r#"{"total": 12}"#).header("a", "b");
        let id = outbox.enqueue(&tx, event).await.unwrap();
        outbox.enqueue(&tx, Event::new("order", 42, "OrderPaid").tombstone()).await.unwrap();
        let event = testing::assert_enqueued(&tx, order("OrderPlaced", &outbox).key(42)).await.unwrap();
        assert_eq!((event.event_id, event.aggregate_type.as_str()), (id, "order"), "{payload}");
        assert_eq!(event.json().unwrap()["total"], 12);
        assert_eq!(event.payload.as_deref(), Some(&br#"{"total": 12}"#[..]), "{payload}");
        assert_eq!(event.headers.into_iter().collect::<Vec<_>>(), [("a".to_owned(), "b".to_owned())]);
        let paid = testing::assert_enqueued(&tx, order("OrderPaid", &outbox).key(42)).await.unwrap();
        assert_eq!((paid.payload.as_ref(), paid.json().unwrap()), (None, serde_json::Value::Null));
        drop(tx);
        db.clean_up().await;
    }
}

#[tokio::test]
#[should_panic(
    expected = r#"expected one event OrderPaid of order 42, but found 0; enqueued: ["OrderPlaced of order 42"]"#
)]
async fn a_missing_event_fails_the_test_and_lists_the_enqueued_events() {
    let mut db = Database::new().await;
    let outbox = outbox(&db, "json").await;
    let tx = db.client.transaction().await.unwrap();
    outbox.enqueue(&tx, Event::new("order", 42, "OrderPlaced").tombstone()).await.unwrap();
    let _ = testing::assert_enqueued(&tx, order("OrderPaid", &outbox).key(42)).await;
}

#[tokio::test]
async fn a_drain_returns_committed_events_once_and_in_order() {
    let mut db = Database::new().await;
    let outbox = outbox(&db, "json").await;
    for (commits, keys) in [(true, 0..3), (false, 3..6), (true, 6..8)] {
        let tx = db.client.transaction().await.unwrap();
        outbox.enqueue_many(&tx, keys.map(|key| Event::new("order", key, "E").tombstone())).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        }
    }
    let drained = testing::drain(&db.client, Filter::new().outbox(&outbox)).await.unwrap();
    assert_eq!(
        drained.iter().map(|event| &*event.aggregate_id).collect::<Vec<_>>(),
        ["0", "1", "2", "6", "7"]
    );
    assert_eq!(testing::drain(&db.client, Filter::new().outbox(&outbox)).await.unwrap(), []);
    db.clean_up().await;
}

#[tokio::test]
#[should_panic(
    expected = r#"expected no event OrderPaid of order, but found 1; enqueued: ["OrderPaid of order 42"]"#
)]
async fn an_unexpected_event_fails_the_test() {
    let mut db = Database::new().await;
    let outbox = outbox(&db, "json").await;
    let tx = db.client.transaction().await.unwrap();
    outbox.enqueue(&tx, Event::new("order", 42, "OrderPaid").tombstone()).await.unwrap();
    let _ = testing::refute_enqueued(&tx, order("OrderPaid", &outbox)).await;
}

/// Another part of the application may insert rows with SQL, with headers that are no texts or without an event ID.
#[tokio::test]
async fn a_malformed_row_fails_only_a_filter_that_selects_it() {
    let mut db = Database::new().await;
    let outbox = outbox(&db, "json").await;
    let tx = db.client.transaction().await.unwrap();
    let insert = |columns: &str, values: &str| {
        format!(
            "INSERT INTO {}.own (aggregate_type, aggregate_id, event_type, {columns}) VALUES ('order', '1', {values})",
            db.schema
        )
    };
    let rows = [
        insert("event_id, headers", "'Numbered', gen_random_uuid(), '{\"n\": 1}'"),
        insert("event_id", "'Nameless', NULL"),
    ];
    tx.batch_execute(&rows.join(";")).await.unwrap();
    outbox.enqueue(&tx, Event::new("order", 1, "OrderPaid").tombstone()).await.unwrap();
    testing::assert_enqueued(&tx, order("OrderPaid", &outbox)).await.unwrap();
    testing::refute_enqueued(&tx, order("OrderPlaced", &outbox)).await.unwrap();
    let error = testing::find(&tx, order("Numbered", &outbox)).await.unwrap_err();
    assert!(matches!(error, Error::Json(_)), "{error:?}");
    let error = testing::find(&tx, order("Nameless", &outbox)).await.unwrap_err();
    assert!(matches!(error, Error::EventId(_)), "{error:?}");
    drop(tx);
    db.clean_up().await;
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    order_id: i64,
    cents: i64,
}

/// The default outbox exists only in this transaction.
#[tokio::test]
async fn typed_events_of_the_default_outbox_are_returned() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    tx.batch_execute(
        "CREATE TABLE public.outbox (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, aggregate_type text,
             aggregate_id text, event_type text, payload jsonb, headers jsonb, sent_at timestamptz)",
    )
    .await
    .unwrap();
    let paid = [OrderPaid { order_id: 2, cents: 1200 }, OrderPaid { order_id: 1, cents: 5 }];
    pg_outbox::enqueue_many(&tx, &paid).await.unwrap();
    pg_outbox::enqueue(&tx, Event::new("invoice", 1, "OrderPaid").tombstone()).await.unwrap();
    assert_eq!(testing::enqueued::<OrderPaid>(&tx).await.unwrap(), paid);
    let placed = Event::new("order", 1, "OrderPaid").bytes(r#"{"order_id": "x"}"#);
    pg_outbox::enqueue(&tx, placed).await.unwrap();
    let error = testing::enqueued::<OrderPaid>(&tx).await.unwrap_err();
    assert!(matches!(error, Error::Json(_)), "{error:?}");
    tx.rollback().await.unwrap();
    db.clean_up().await;
}

#[tokio::test]
async fn an_event_of_another_type_is_not_returned_as_a_typed_event() {
    let mut db = Database::new().await;
    let outbox = outbox(&db, "json").await;
    let tx = db.client.transaction().await.unwrap();
    let payload = serde_json::to_vec(&OrderPaid { order_id: 1, cents: 2 }).unwrap();
    for (aggregate_type, event_type) in [("invoice", "OrderPaid"), ("order", "OrderPlaced")] {
        let event = Event::new(aggregate_type, 1, event_type).bytes(payload.clone());
        outbox.enqueue(&tx, event).await.unwrap();
        let filter = Filter::event(aggregate_type, event_type).outbox(&outbox);
        let error = testing::assert_enqueued(&tx, filter).await.unwrap().event::<OrderPaid>().unwrap_err();
        let expected =
            format!("expected an event OrderPaid of order, but found {event_type} of {aggregate_type} 1");
        assert_eq!(error.to_string(), expected);
    }
    drop(tx);
    db.clean_up().await;
}
