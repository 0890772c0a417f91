use pg_outbox::{Event, EventId};

use crate::database::Database;

#[tokio::test]
async fn row_ids_follow_the_order_of_the_input() {
    let mut db = Database::new().await;
    // Neither keys nor event ids ascend, so only the order of the input passes.
    let mut ids: Vec<EventId> = (0..1000).map(|_| EventId::new()).collect();
    ids.reverse();
    let keys: Vec<String> = (0..1000).map(|n| (n * 7919 % 1000).to_string()).collect();
    let events =
        keys.iter().zip(&ids).map(|(key, id)| Event::new("order", key, "E").tombstone().event_id(*id));
    let tx = db.client.transaction().await.unwrap();
    assert_eq!(db.outbox.enqueue_many(&tx, events).await.unwrap(), ids);
    tx.commit().await.unwrap();
    let rows = db.rows().await;
    assert_eq!(rows.iter().map(|row| row.event_id).collect::<Vec<_>>(), ids);
    assert_eq!(rows.into_iter().map(|row| row.aggregate_id).collect::<Vec<_>>(), keys);
    db.clean_up().await;
}

#[tokio::test]
async fn each_event_keeps_its_own_columns() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    let events = [
        Event::new("order", 1, "Placed").bytes(r#"{ "a" : "ü" }"#).header("h", "1"),
        Event::new("order", 2, "Removed").tombstone(),
        Event::new("invoice", 3, "Sent").bytes("[]").header("x", "{},\"NULL\"").header("h", "2"),
    ];
    db.outbox.enqueue_many(&tx, events).await.unwrap();
    tx.commit().await.unwrap();
    let rows = db.rows().await;
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            let payload = row.payload.as_deref().map(|bytes| std::str::from_utf8(bytes).unwrap());
            (&*row.aggregate_type, &*row.aggregate_id, &*row.event_type, payload, row.headers.as_deref())
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("order", "1", "Placed", Some(r#"{ "a" : "ü" }"#), Some(r#"{"h": "1"}"#)),
            ("order", "2", "Removed", None, None),
            ("invoice", "3", "Sent", Some("[]"), Some(r#"{"h": "2", "x": "{},\"NULL\""}"#)),
        ]
    );
    db.clean_up().await;
}

#[tokio::test]
async fn enqueueing_no_events_sends_no_statement() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    // The table does not exist, so a statement would fail.
    let nowhere = pg_outbox::Outbox::new("nowhere.outbox").unwrap();
    assert_eq!(nowhere.enqueue_many(&tx, Vec::<Event>::new()).await.unwrap(), []);
    tx.commit().await.unwrap();
    db.clean_up().await;
}

#[tokio::test]
async fn ten_thousand_events_are_inserted_by_one_call() {
    let mut db = Database::new().await;
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(240));
    let events: Vec<Event> = (0..10_000)
        .map(|n| Event::new("order", n % 1000, "OrderPlaced").bytes(payload.clone()).header("h", "1"))
        .collect();
    let tx = db.client.transaction().await.unwrap();
    let ids = db.outbox.enqueue_many(&tx, events).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await.iter().map(|row| row.event_id).collect::<Vec<_>>(), ids);
    assert_eq!(ids.len(), 10_000);
    db.clean_up().await;
}
