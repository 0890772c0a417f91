use pg_outbox::{Event, EventId};

use crate::database::{Database, Row};

#[tokio::test]
async fn a_rollback_leaves_nothing() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    db.outbox.enqueue(&tx, Event::new("order", 1, "OrderPlaced").tombstone()).await.unwrap();
    db.outbox.enqueue_many(&tx, [2, 3].map(|id| Event::new("order", id, "E").tombstone())).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(db.rows().await, []);
    db.clean_up().await;
}

#[tokio::test]
async fn nothing_is_visible_before_the_commit() {
    let mut db = Database::new().await;
    let table = db.table();
    let tx = db.client.transaction().await.unwrap();
    db.outbox.enqueue(&tx, Event::new("order", 1, "OrderPlaced").tombstone()).await.unwrap();
    let other = crate::database::connect().await;
    let count = format!("SELECT count(*) FROM {table}");
    assert_eq!(other.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 0);
    tx.commit().await.unwrap();
    assert_eq!(other.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1);
    db.clean_up().await;
}

#[tokio::test]
async fn a_committed_event_is_stored_unchanged() {
    let mut db = Database::new().await;
    let event = Event::new("order", "Bestellung-ä-1", "OrderPlaced")
        .json(&serde_json::json!({ "total": 12 }))
        .unwrap()
        .header("traceparent", "00-abc-01")
        .header("note", "a \"quoted\" line\nand ünïcode");
    let id = event.id();
    let tx = db.client.transaction().await.unwrap();
    assert_eq!(db.outbox.enqueue(&tx, event).await.unwrap(), id);
    tx.commit().await.unwrap();
    assert_eq!(id.as_uuid().get_version_num(), 7);
    assert_eq!(
        db.rows().await,
        [Row {
            event_id: id,
            aggregate_type: "order".to_owned(),
            aggregate_id: "Bestellung-ä-1".to_owned(),
            event_type: "OrderPlaced".to_owned(),
            payload: Some(br#"{"total":12}"#.to_vec()),
            headers: Some(
                r#"{"note": "a \"quoted\" line\nand ünïcode", "traceparent": "00-abc-01"}"#.to_owned()
            ),
        }]
    );
    db.clean_up().await;
}

#[tokio::test]
async fn an_event_without_headers_has_null_headers() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    db.outbox.enqueue(&tx, Event::new("order", 1, "E").tombstone()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await[0].headers, None);
    db.clean_up().await;
}

#[tokio::test]
async fn the_table_accepts_a_repeated_event_id() {
    let mut db = Database::new().await;
    let id = EventId::new();
    let tx = db.client.transaction().await.unwrap();
    for _ in 0..2 {
        let event = Event::new("order", 1, "E").tombstone().event_id(id);
        assert_eq!(db.outbox.enqueue(&tx, event).await.unwrap(), id);
    }
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await.iter().map(|row| row.event_id).collect::<Vec<_>>(), [id, id]);
    db.clean_up().await;
}

#[tokio::test]
async fn a_rolled_back_savepoint_removes_its_events() {
    let mut db = Database::new().await;
    let mut tx = db.client.transaction().await.unwrap();
    db.outbox.enqueue(&tx, Event::new("order", "kept", "E").tombstone()).await.unwrap();
    let savepoint = tx.transaction().await.unwrap();
    db.outbox.enqueue(&savepoint, Event::new("order", "undone", "E").tombstone()).await.unwrap();
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.keys().await, ["kept"]);
    db.clean_up().await;
}

#[tokio::test]
async fn the_sql_function_inserts_the_same_row() {
    let mut db = Database::new().await;
    let event = Event::new("order", 42, "OrderPlaced").bytes(r#"{"total": 12}"#).header("a", "b");
    let id = event.id();
    let tx = db.client.transaction().await.unwrap();
    db.outbox.enqueue(&tx, event).await.unwrap();
    let sql = format!(
        "SELECT {}.outbox_enqueue('order', '42', 'OrderPlaced', '{{\"total\": 12}}', '{{\"a\": \"b\"}}', '{id}')",
        db.schema
    );
    assert_eq!(EventId::from(tx.query_one(&sql, &[]).await.unwrap().get::<_, uuid::Uuid>(0)), id);
    tx.commit().await.unwrap();
    let rows = db.rows().await;
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], rows[1]);
    db.clean_up().await;
}
