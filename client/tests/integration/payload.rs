use pg_outbox::{Error, Event};

use crate::database::Database;

/// JSON that changes when it is parsed and printed again.
const ODD_JSON: &str = "  {\"b\" : 1.0e2,\n\t\"a\":\"\\u00fc ü 🦀\", \"a\": 1 } \n";

async fn enqueue_both_ways(db: &mut Database, payload: Option<&[u8]>) {
    let event = || match payload {
        Some(bytes) => Event::new("order", 1, "E").bytes(bytes),
        None => Event::new("order", 1, "E").tombstone(),
    };
    let tx = db.client.transaction().await.unwrap();
    db.outbox.enqueue(&tx, event()).await.unwrap();
    db.outbox.enqueue_many(&tx, [event(), event()]).await.unwrap();
    tx.commit().await.unwrap();
}

async fn stored(column_type: &str, payload: Option<&[u8]>) -> Vec<Option<Vec<u8>>> {
    let mut db = Database::with_payload(column_type).await;
    enqueue_both_ways(&mut db, payload).await;
    let payloads = db.payloads().await;
    db.clean_up().await;
    payloads
}

#[tokio::test]
async fn a_json_column_keeps_every_byte() {
    assert_eq!(stored("json", Some(ODD_JSON.as_bytes())).await, vec![Some(ODD_JSON.into()); 3]);
    assert_eq!(stored("json", Some(br#""\u0000""#)).await, vec![Some(br#""\u0000""#.into()); 3]);
}

#[tokio::test]
async fn a_bytea_column_keeps_every_byte() {
    let every_byte: Vec<u8> = (0..=255).collect();
    assert_eq!(stored("bytea", Some(&every_byte)).await, vec![Some(every_byte.clone()); 3]);
    assert_eq!(stored("bytea", Some(b"")).await, vec![Some(vec![]); 3]);
}

#[tokio::test]
async fn a_jsonb_column_accepts_the_same_events() {
    let printed = r#"{"a": 1, "b": 100}"#;
    assert_eq!(
        stored("jsonb", Some(br#"{"b":1e2,  "a" : 1}"#)).await,
        vec![Some(printed.as_bytes().to_vec()); 3]
    );
}

#[tokio::test]
async fn a_tombstone_is_null_in_each_column_type() {
    for column_type in ["json", "jsonb", "bytea"] {
        assert_eq!(stored(column_type, None).await, vec![None; 3], "{column_type}");
    }
}

#[tokio::test]
async fn an_unsupported_column_type_is_an_error_with_its_name() {
    let mut db = Database::with_payload("text").await;
    let tx = db.client.transaction().await.unwrap();
    let error = db.outbox.enqueue(&tx, Event::new("order", 1, "E").bytes("{}")).await.unwrap_err();
    assert!(
        matches!(&error, Error::UnsupportedPayload { column_type, .. } if column_type == "text"),
        "{error:?}"
    );
    drop(tx);
    db.clean_up().await;
}

/// PostgreSQL would assign the bytes as hexadecimal digits.
#[tokio::test]
async fn a_column_that_changes_from_bytea_to_text_gets_no_events() {
    let mut db = Database::with_payload("bytea").await;
    enqueue_both_ways(&mut db, Some(b"{}")).await;
    db.set_payload("text").await;
    let event = || Event::new("order", 1, "E").bytes("{}");
    let tx = db.client.transaction().await.unwrap();
    let error = db.outbox.enqueue_many(&tx, [event(), event()]).await.unwrap_err();
    assert!(
        matches!(&error, Error::Postgres { source, .. } if source.sqlstate() == Some("42804")),
        "{error:?}"
    );
    tx.rollback().await.unwrap();
    let tx = db.client.transaction().await.unwrap();
    let error = db.outbox.enqueue(&tx, event()).await.unwrap_err();
    assert!(matches!(error, Error::UnsupportedPayload { .. }), "{error:?}");
    drop(tx);
    db.clean_up().await;
}

#[tokio::test]
async fn a_changed_column_type_fails_at_most_one_transaction() {
    let mut db = Database::with_payload("bytea").await;
    enqueue_both_ways(&mut db, Some(b"{}")).await;
    for column_type in ["json", "bytea", "jsonb"] {
        db.set_payload(column_type).await;
        let tx = db.client.transaction().await.unwrap();
        let first = db.outbox.enqueue(&tx, Event::new("order", 1, "E").bytes("{}")).await;
        if let Err(error) = first {
            assert!(matches!(error, Error::Postgres { .. }), "{error:?}");
        }
        drop(tx);
        enqueue_both_ways(&mut db, Some(b"{}")).await;
    }
    db.clean_up().await;
}
