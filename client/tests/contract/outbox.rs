use pg_outbox::{Error, Event, EventId, Outbox};

use crate::database::{Database, Row, url};
use crate::drivers::{Connection, Tx};

/// JSON that changes when it is parsed and printed again.
const ODD_JSON: &str = "  {\"b\" : 1.0e2,\n\t\"a\":\"\\u00fc ü 🦀\", \"a\": 1 } \n";

fn event(key: impl std::fmt::Display) -> Event {
    Event::new("order", key, "OrderPlaced").tombstone()
}

pub async fn a_commit_makes_the_events_visible<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    db.outbox.enqueue(tx.tx(), event(1)).await.unwrap();
    db.outbox.enqueue_many(tx.tx(), [event(2), event(3)]).await.unwrap();
    assert_eq!(db.rows().await, [], "before the commit");
    tx.commit().await;
    assert_eq!(db.keys().await, ["1", "2", "3"]);
    db.clean_up().await;
}

pub async fn a_rollback_leaves_nothing<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    db.outbox.enqueue(tx.tx(), event(1)).await.unwrap();
    db.outbox.enqueue_many(tx.tx(), [event(2), event(3)]).await.unwrap();
    tx.rollback().await;
    assert_eq!(db.rows().await, []);
    db.clean_up().await;
}

pub async fn an_event_is_stored_unchanged<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let event = Event::new("order", "Bestellung-ä-1", "OrderPlaced")
        .bytes(ODD_JSON)
        .header("traceparent", "00-abc-01")
        .header("note", "a \"quoted\" line\nand ünïcode");
    let id = event.id();
    let mut tx = connection.begin().await;
    assert_eq!(db.outbox.enqueue(tx.tx(), event).await.unwrap(), id);
    tx.commit().await;
    let headers = r#"{"note": "a \"quoted\" line\nand ünïcode", "traceparent": "00-abc-01"}"#;
    assert_eq!(
        db.rows().await,
        [Row {
            event_id: id,
            aggregate_type: "order".to_owned(),
            aggregate_id: "Bestellung-ä-1".to_owned(),
            event_type: "OrderPlaced".to_owned(),
            payload: Some(ODD_JSON.into()),
            headers: Some(headers.to_owned()),
        }]
    );
    db.clean_up().await;
}

pub async fn a_batch_keeps_its_order_and_its_columns<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    // Neither keys nor event ids ascend, so only the order of the input passes.
    let mut ids: Vec<EventId> = (0..500).map(|_| EventId::new()).collect();
    ids.reverse();
    let expected: Vec<Row> = ids
        .iter()
        .zip(0..)
        .map(|(id, n)| Row {
            event_id: *id,
            aggregate_type: format!("type{}", n % 3),
            aggregate_id: (n * 7919 % 500).to_string(),
            event_type: format!("E{n}"),
            payload: (n % 4 != 0).then(|| format!(r#"{{ "n":{n}, "t": "{{ü,\"NULL\"}}" }}"#).into_bytes()),
            headers: (n % 5 != 0).then(|| format!(r#"{{"h": "{{{n}}}, NULL"}}"#)),
        })
        .collect();
    let events = expected.iter().zip(0..).map(|(row, n)| {
        let event =
            Event::new(&row.aggregate_type, &row.aggregate_id, &row.event_type).event_id(row.event_id);
        let event = match &row.payload {
            Some(payload) => event.bytes(payload.clone()),
            None => event.tombstone(),
        };
        if row.headers.is_some() { event.header("h", format!("{{{n}}}, NULL")) } else { event }
    });
    let mut tx = connection.begin().await;
    assert_eq!(db.outbox.enqueue_many(tx.tx(), events).await.unwrap(), ids);
    tx.commit().await;
    assert_eq!(db.rows().await, expected);
    db.clean_up().await;
}

pub async fn ten_thousand_events_are_inserted_by_one_call<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(240));
    let events =
        (0..10_000).map(|n| Event::new("order", n % 1000, "E").bytes(payload.clone()).header("h", "1"));
    let mut tx = connection.begin().await;
    assert_eq!(db.outbox.enqueue_many(tx.tx(), events).await.unwrap().len(), 10_000);
    tx.commit().await;
    assert_eq!(db.rows().await.len(), 10_000);
    db.clean_up().await;
}

pub async fn enqueueing_no_events_sends_no_statement<C: Connection>() {
    let mut connection = C::connect(&url()).await;
    let mut tx = connection.begin().await;
    // The table does not exist, so a statement would fail.
    let nowhere = Outbox::new("nowhere.outbox").unwrap();
    assert_eq!(nowhere.enqueue_many(tx.tx(), Vec::<Event>::new()).await.unwrap(), []);
    tx.run("SELECT 1").await.unwrap();
    tx.commit().await;
}

/// Enqueues one event alone and two in a batch. Returns the stored payloads.
async fn stored<C: Connection>(db: &Database, payload: Option<&[u8]>) -> Vec<Option<Vec<u8>>> {
    let event = || match payload {
        Some(bytes) => Event::new("order", 1, "E").bytes(bytes),
        None => event(1),
    };
    let mut connection = C::connect(&url()).await;
    let mut tx = connection.begin().await;
    tx.run(&format!("DELETE FROM {}", db.table())).await.unwrap();
    db.outbox.enqueue(tx.tx(), event()).await.unwrap();
    db.outbox.enqueue_many(tx.tx(), [event(), event()]).await.unwrap();
    tx.commit().await;
    db.payloads().await
}

pub async fn json_and_bytea_keep_every_byte<C: Connection>() {
    let every_byte: Vec<u8> = (0..=255).collect();
    for (column_type, payload) in [
        ("json", ODD_JSON.as_bytes()),
        ("json", br#""\u0000""#),
        ("bytea", &every_byte),
        ("bytea", b""),
        ("bytea", ODD_JSON.as_bytes()),
    ] {
        let db = Database::with_payload(column_type).await;
        assert_eq!(stored::<C>(&db, Some(payload)).await, vec![Some(payload.to_vec()); 3], "{column_type}");
        assert_eq!(stored::<C>(&db, None).await, vec![None; 3], "{column_type}");
        db.clean_up().await;
    }
}

pub async fn a_jsonb_column_accepts_the_same_events<C: Connection>() {
    let db = Database::with_payload("jsonb").await;
    let printed = br#"{"a": 1, "b": 100}"#.to_vec();
    assert_eq!(stored::<C>(&db, Some(br#"{"b":1e2,  "a" : 1}"#)).await, vec![Some(printed); 3]);
    assert_eq!(stored::<C>(&db, None).await, vec![None; 3]);
    db.clean_up().await;
}

pub async fn an_unsupported_column_type_is_an_error_with_its_name<C: Connection>() {
    let (db, mut connection) = (Database::with_payload("text").await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    let error = db.outbox.enqueue(tx.tx(), event(1)).await.unwrap_err();
    assert!(
        matches!(&error, Error::UnsupportedPayload { column_type, .. } if column_type == "text"),
        "{error:?}"
    );
    tx.rollback().await;
    db.clean_up().await;
}

pub async fn a_changed_column_type_fails_at_most_one_transaction<C: Connection>() {
    let (db, mut connection) = (Database::with_payload("bytea").await, C::connect(&url()).await);
    let events = || [Event::new("order", 1, "E").bytes("{}"), Event::new("order", 2, "E").bytes("{}")];
    for column_type in ["bytea", "json", "bytea", "jsonb"] {
        db.set_payload(column_type).await;
        let mut tx = connection.begin().await;
        if let Err(error) = db.outbox.enqueue_many(tx.tx(), events()).await {
            assert!(matches!(error, Error::Postgres { .. }), "{error:?}");
        }
        tx.rollback().await;
        let mut tx = connection.begin().await;
        db.outbox.enqueue_many(tx.tx(), events()).await.unwrap();
        let [one, _] = events();
        db.outbox.enqueue(tx.tx(), one).await.unwrap();
        tx.commit().await;
    }
    assert_eq!(db.rows().await.len(), 12);
    db.clean_up().await;
}

pub async fn a_hostile_table_name_is_quoted<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let hostile = r#""o""x; DROP TABLE outbox; -- '$1""#;
    let sql = format!("CREATE TABLE {}.{hostile} (LIKE {} INCLUDING ALL)", db.schema, db.table());
    db.client.batch_execute(&sql).await.unwrap();
    let outbox = Outbox::new(&format!("{}.{hostile}", db.schema)).unwrap();
    let mut tx = connection.begin().await;
    outbox.enqueue(tx.tx(), event(1)).await.unwrap();
    outbox.enqueue_many(tx.tx(), [event(2), event(3)]).await.unwrap();
    tx.commit().await;
    let count = format!("SELECT count(*) FROM {}.{hostile}", db.schema);
    assert_eq!(db.client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 3);
    db.clean_up().await;
}
