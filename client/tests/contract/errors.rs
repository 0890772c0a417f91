use std::error::Error as _;

use pg_outbox::{Error, Event, InvalidEvent, Outbox, PostgresError};

use crate::database::{Database, url};
use crate::drivers::{Connection, Tx};

fn event(key: impl std::fmt::Display) -> Event {
    Event::new("order", key, "E").tombstone()
}

fn postgres_error(error: &Error) -> &PostgresError {
    match error {
        Error::Postgres { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

pub async fn an_invalid_event_is_rejected_before_a_statement_is_sent<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    let refused = db.outbox.enqueue(tx.tx(), Event::new("my order", 1, "E").tombstone()).await;
    assert!(matches!(refused, Err(Error::InvalidEvent { position: 1, reason: InvalidEvent::Topic { .. } })));
    let refused = db.outbox.enqueue_many(tx.tx(), [event(1), event("")]).await;
    assert!(matches!(
        refused,
        Err(Error::InvalidEvent { position: 2, reason: InvalidEvent::Empty { field: "aggregate_id" } })
    ));
    db.outbox.enqueue(tx.tx(), event(1)).await.unwrap();
    tx.commit().await;
    assert_eq!(db.keys().await, ["1"]);
    db.clean_up().await;
}

pub async fn the_error_for_a_missing_table_names_the_migrate_command<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    for table in ["nowhere.outbox".to_owned(), format!("{}.other", db.schema)] {
        let mut tx = connection.begin().await;
        let outbox = Outbox::new(&table).unwrap();
        let error = outbox.enqueue(tx.tx(), event(1)).await.unwrap_err();
        assert!(matches!(error, Error::NoOutbox { .. }), "{error:?}");
        assert!(error.to_string().contains("outbox-relay migrate"), "{error}");
        let after = db.outbox.enqueue(tx.tx(), event(2)).await;
        assert!(after.is_err(), "the transaction could be committed without its event");
        tx.rollback().await;
    }
    db.clean_up().await;
}

pub async fn a_table_that_drops_rows_is_an_error<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let (schema, table) = (&db.schema, db.table());
    db.client
        .batch_execute(&format!(
            "CREATE FUNCTION {schema}.skip_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER skip_row BEFORE INSERT ON {table} FOR EACH ROW
             WHEN (NEW.aggregate_id = '2') EXECUTE FUNCTION {schema}.skip_row()"
        ))
        .await
        .unwrap();
    let mut tx = connection.begin().await;
    let error = db.outbox.enqueue_many(tx.tx(), [event(1), event(2), event(3)]).await.unwrap_err();
    assert!(matches!(error, Error::NotStored { given: 3, stored: 2, .. }), "{error:?}");
    tx.rollback().await;
    db.clean_up().await;
}

pub async fn errors_do_not_print_the_payload<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let check =
        format!("ALTER TABLE {} ADD CONSTRAINT no_robots CHECK (aggregate_id <> 'robot')", db.table());
    db.client.batch_execute(&check).await.unwrap();
    let secret = || Event::new("order", "robot", "E").bytes(r#"{"secret":1}"#).header("secret", "secret");
    for (events, sqlstate) in [
        (vec![Event::new("order", 1, "E").bytes("{ secret")], "22P02"),
        (vec![event(1), Event::new("order", 1, "E").bytes("{ secret")], "22P02"),
        (vec![Event::new("order", 1, "E").bytes(b"\"secret \xff\"".to_vec())], "22021"),
        (vec![secret()], "23514"),
        (vec![event(1), secret()], "23514"),
    ] {
        let mut tx = connection.begin().await;
        let error = db.outbox.enqueue_many(tx.tx(), events).await.unwrap_err();
        tx.rollback().await;
        let source = postgres_error(&error);
        assert_eq!(source.sqlstate(), Some(sqlstate), "{source}");
        assert!(!source.is_connection_lost());
        let chain = format!("{error} {error:?} {}", error.source().unwrap());
        assert!(error.source().unwrap().source().is_none() && !chain.contains("secret"), "{chain}");
        assert!(chain.contains(sqlstate), "{chain}");
    }
    db.clean_up().await;
}

pub async fn the_error_names_a_violated_constraint<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let unique = format!("ALTER TABLE {} ADD CONSTRAINT one_of_each UNIQUE (aggregate_id)", db.table());
    db.client.batch_execute(&unique).await.unwrap();
    let mut tx = connection.begin().await;
    let error = db.outbox.enqueue_many(tx.tx(), [event(1), event(1)]).await.unwrap_err();
    tx.rollback().await;
    let source = postgres_error(&error);
    assert_eq!((source.sqlstate(), source.constraint()), (Some("23505"), Some("one_of_each")));
    assert!(source.driver_error().downcast_ref::<C::Error>().is_some(), "{source:?}");
    db.clean_up().await;
}
