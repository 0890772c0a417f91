use pg_outbox::{Event, testing};

use crate::database::{Database, url};
use crate::drivers::{Connection, Tx};

pub async fn an_enqueued_event_is_found_and_drained_after_its_commit<C: Connection>() {
    for column_type in ["json", "bytea"] {
        let (db, mut connection) = (Database::with_payload(column_type).await, C::connect(&url()).await);
        for commits in [false, true] {
            let mut tx = connection.begin().await;
            let event = Event::new("order", 42, "OrderPlaced").bytes(r#"{"total": 12}"#).header("a", "b");
            let id = db.outbox.enqueue(tx.tx(), event).await.unwrap();
            db.outbox.enqueue(tx.tx(), Event::new("order", 42, "OrderPaid").tombstone()).await.unwrap();
            let event = testing::assert_enqueued(tx.tx(), &db.outbox, "OrderPlaced", 42).await.unwrap();
            assert_eq!((event.event_id, event.json().unwrap()["total"].as_i64()), (id, Some(12)));
            assert_eq!(event.headers.into_iter().collect::<Vec<_>>(), [("a".to_owned(), "b".to_owned())]);
            let paid = testing::assert_enqueued(tx.tx(), &db.outbox, "OrderPaid", 42).await.unwrap();
            assert_eq!(paid.payload, None);
            if commits { tx.commit().await } else { tx.rollback().await }
        }
        let drained = testing::drain(connection.client(), &db.outbox).await.unwrap();
        let types: Vec<_> = drained.iter().map(|event| event.event_type.as_str()).collect();
        assert_eq!(types, ["OrderPlaced", "OrderPaid"]);
        assert_eq!(testing::drain(connection.client(), &db.outbox).await.unwrap(), []);
        db.clean_up().await;
    }
}
