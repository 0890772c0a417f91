use pg_outbox::{Event, Outbox, testing};

use crate::database::Database;

async fn outbox(db: &Database, payload: &str) -> Outbox {
    db.run(&format!(
        "CREATE TABLE {{s}}.outbox (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, aggregate_type text,
             aggregate_id text, event_type text, payload {payload}, headers jsonb, sent_at timestamptz)"
    ))
    .await;
    Outbox::new(&format!("{}.outbox", db.schema)).unwrap()
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
        let event = testing::assert_enqueued(&tx, &outbox, "OrderPlaced", 42).await.unwrap();
        assert_eq!((event.event_id, event.aggregate_type.as_str()), (id, "order"), "{payload}");
        assert_eq!(event.json().unwrap()["total"], 12);
        assert_eq!(event.payload.as_deref(), Some(&br#"{"total": 12}"#[..]), "{payload}");
        assert_eq!(event.headers.into_iter().collect::<Vec<_>>(), [("a".to_owned(), "b".to_owned())]);
        let paid = testing::assert_enqueued(&tx, &outbox, "OrderPaid", 42).await.unwrap();
        assert_eq!((paid.payload.as_ref(), paid.json().unwrap()), (None, serde_json::Value::Null));
        drop(tx);
        db.clean_up().await;
    }
}

#[tokio::test]
#[should_panic(expected = r#"expected one event OrderPaid of 42, but found 0; enqueued: ["OrderPlaced 42"]"#)]
async fn a_missing_event_fails_the_test_and_lists_the_enqueued_events() {
    let mut db = Database::new().await;
    let outbox = outbox(&db, "json").await;
    let tx = db.client.transaction().await.unwrap();
    outbox.enqueue(&tx, Event::new("order", 42, "OrderPlaced").tombstone()).await.unwrap();
    let _ = testing::assert_enqueued(&tx, &outbox, "OrderPaid", 42).await;
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
    let drained = testing::drain(&db.client, &outbox).await.unwrap();
    assert_eq!(
        drained.iter().map(|event| &*event.aggregate_id).collect::<Vec<_>>(),
        ["0", "1", "2", "6", "7"]
    );
    assert_eq!(testing::drain(&db.client, &outbox).await.unwrap(), []);
    db.clean_up().await;
}
