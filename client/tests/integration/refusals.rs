use std::error::Error as _;

use pg_outbox::{Error, Event, InvalidEvent, Outbox};

use crate::database::Database;

#[tokio::test]
async fn an_invalid_event_leaves_the_transaction_usable() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    let good = || Event::new("order", 1, "E").tombstone();
    let refused = db.outbox.enqueue(&tx, Event::new("my order", 1, "E").tombstone()).await;
    assert!(matches!(refused, Err(Error::InvalidEvent { position: 1, reason: InvalidEvent::Topic { .. } })));
    let refused = db.outbox.enqueue_many(&tx, [good(), Event::new("order", "", "E").tombstone()]).await;
    assert!(matches!(
        refused,
        Err(Error::InvalidEvent { position: 2, reason: InvalidEvent::Empty { field: "aggregate_id" } })
    ));
    db.outbox.enqueue(&tx, good()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await.len(), 1);
    db.clean_up().await;
}

#[tokio::test]
async fn the_error_for_a_missing_table_names_the_migrate_command() {
    let mut db = Database::new().await;
    for table in ["nowhere.outbox".to_owned(), format!("{}.other", db.schema)] {
        let tx = db.client.transaction().await.unwrap();
        let outbox = Outbox::new(&table).unwrap();
        let error = outbox.enqueue(&tx, Event::new("order", 1, "E").tombstone()).await.unwrap_err();
        assert!(matches!(error, Error::NoOutbox { .. }), "{error:?}");
        assert!(error.to_string().contains("outbox-relay migrate"), "{error}");
    }
    db.clean_up().await;
}

#[tokio::test]
async fn postgres_errors_do_not_print_the_payload() {
    let mut db = Database::new().await;
    let check =
        format!("ALTER TABLE {} ADD CONSTRAINT no_robots CHECK (aggregate_id <> 'robot')", db.table());
    db.client.batch_execute(&check).await.unwrap();
    let broken_json = Event::new("order", 1, "E").bytes("{ secret");
    let broken_row = Event::new("order", "robot", "E").bytes(r#"{"secret":1}"#);
    for (event, sqlstate) in [(broken_json, "22P02"), (broken_row, "23514")] {
        let tx = db.client.transaction().await.unwrap();
        let error = db.outbox.enqueue(&tx, event).await.unwrap_err();
        let Error::Postgres { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.sqlstate(), Some(sqlstate));
        let driver_error: &tokio_postgres::Error = source.driver_error().downcast_ref().unwrap();
        assert!(driver_error.as_db_error().is_some());
        let chain = format!("{error} {} {error:?}", error.source().unwrap());
        assert!(error.source().unwrap().source().is_none() && !chain.contains("secret"), "{chain}");
        assert!(chain.contains(sqlstate), "{chain}");
    }
    db.clean_up().await;
}

#[tokio::test]
async fn a_table_that_drops_rows_is_an_error() {
    let mut db = Database::new().await;
    let (schema, table) = (&db.schema, db.table());
    db.client
        .batch_execute(&format!(
            "CREATE FUNCTION {schema}.skip_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER skip_row BEFORE INSERT ON {table} FOR EACH ROW
             WHEN (NEW.aggregate_id = '2') EXECUTE FUNCTION {schema}.skip_row()"
        ))
        .await
        .unwrap();
    let tx = db.client.transaction().await.unwrap();
    let events = [1, 2, 3].map(|id| Event::new("order", id, "E").tombstone());
    let error = db.outbox.enqueue_many(&tx, events).await.unwrap_err();
    assert!(matches!(error, Error::NotStored { given: 3, stored: 2, .. }), "{error:?}");
    drop(tx);
    db.clean_up().await;
}

#[tokio::test]
async fn a_hostile_table_name_is_quoted() {
    let mut db = Database::new().await;
    let hostile = r#""o""x; DROP TABLE outbox; --""#;
    let sql = format!("CREATE TABLE {}.{hostile} (LIKE {} INCLUDING ALL)", db.schema, db.table());
    db.client.batch_execute(&sql).await.unwrap();
    let outbox = Outbox::new(&format!("{}.{hostile}", db.schema)).unwrap();
    let tx = db.client.transaction().await.unwrap();
    outbox.enqueue(&tx, Event::new("order", 1, "E").tombstone()).await.unwrap();
    outbox.enqueue_many(&tx, [2, 3].map(|id| Event::new("order", id, "E").tombstone())).await.unwrap();
    tx.commit().await.unwrap();
    let count = format!("SELECT count(*) FROM {}.{hostile}", db.schema);
    assert_eq!(db.client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 3);
    assert_eq!(db.rows().await, []);
    db.clean_up().await;
}
