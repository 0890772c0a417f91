use pg_outbox::{Error, Event, OutboxEvent};
use serde::Serialize;

use crate::database::{Database, Row, url};
use crate::drivers::{Connection, Tx};

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    order_id: i64,
    note: &'static str,
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "shipment", key = "number", event = "shipped")]
struct OrderShipped {
    number: String,
    /// JSON has no keys of this type, so only an empty map can be serialized.
    weights: std::collections::HashMap<(u8, u8), u8>,
}

fn shipped(number: &str) -> OrderShipped {
    OrderShipped { number: number.to_owned(), weights: [].into() }
}

fn row(aggregate_type: &str, aggregate_id: &str, event_type: &str, payload: &str) -> Row {
    Row {
        event_id: pg_outbox::Uuid::nil().into(),
        aggregate_type: aggregate_type.to_owned(),
        aggregate_id: aggregate_id.to_owned(),
        event_type: event_type.to_owned(),
        payload: Some(payload.into()),
        headers: None,
    }
}

pub async fn a_typed_event_is_stored_with_its_types_key_and_json<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    let id = db.outbox.enqueue(tx.tx(), &OrderPaid { order_id: 42, note: "ä" }).await.unwrap();
    db.outbox.enqueue_many(tx.tx(), &[shipped("a"), shipped("b")]).await.unwrap();
    let with_header = Event::of(&OrderPaid { order_id: 7, note: "" }).unwrap().header("h", "1");
    db.outbox.enqueue(tx.tx(), with_header).await.unwrap();
    tx.commit().await;
    let mut rows = db.rows().await;
    assert_eq!(rows[0].event_id, id);
    assert_eq!(rows[3].headers.take().as_deref(), Some(r#"{"h": "1"}"#));
    for row in &mut rows {
        row.event_id = pg_outbox::Uuid::nil().into();
    }
    assert_eq!(
        rows,
        [
            row("order", "42", "OrderPaid", r#"{"order_id":42,"note":"ä"}"#),
            row("shipment", "a", "shipped", r#"{"number":"a","weights":{}}"#),
            row("shipment", "b", "shipped", r#"{"number":"b","weights":{}}"#),
            row("order", "7", "OrderPaid", r#"{"order_id":7,"note":""}"#),
        ]
    );
    db.clean_up().await;
}

pub async fn a_typed_event_that_cannot_be_serialized_leaves_the_transaction_usable<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    let unserializable = OrderShipped { weights: [((1, 2), 3)].into(), ..shipped("a") };
    let refused = db.outbox.enqueue(tx.tx(), &unserializable).await;
    assert!(matches!(refused, Err(Error::Json(_))), "{refused:?}");
    let refused = db.outbox.enqueue_many(tx.tx(), [&shipped("b"), &unserializable]).await;
    assert!(matches!(refused, Err(Error::Json(_))), "{refused:?}");
    db.outbox.enqueue(tx.tx(), &shipped("c")).await.unwrap();
    tx.commit().await;
    assert_eq!(db.keys().await, ["c"]);
    db.clean_up().await;
}
