use std::error::Error as _;

use pg_outbox::retry::{Classify, Verdict};
use pg_outbox::{DatabaseError, Error, Event, InvalidEvent, Outbox, PostgresError, inbox};

use crate::database::{Database, connect, url};
use crate::drivers::{Connection, Tx};
use crate::modules;

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
        assert_eq!(error.verdict(), Verdict::Final);
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

fn inbox_postgres_error(error: inbox::Error) -> PostgresError {
    match error {
        inbox::Error::Database(DatabaseError::Postgres { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// Two transactions receive two events in opposite orders. PostgreSQL aborts one of them.
pub async fn a_deadlock_can_be_retried<C: Connection>() {
    let db = modules::Database::new().await;
    let (mut one, mut two) = (C::connect(&url()).await, C::connect(&url()).await);
    let (mut first, mut second) = (one.begin().await, two.begin().await);
    for tx in [&mut first, &mut second] {
        tx.run("SET LOCAL deadlock_timeout = '20ms'").await.unwrap();
    }
    let _ = db.inbox.receive(first.tx(), "a", "1").await.unwrap();
    let _ = db.inbox.receive(second.tx(), "a", "2").await.unwrap();
    // The aborted transaction rolls back. The other one waits for that.
    let receive = async |mut tx: C::Tx<'_>, event: &str| {
        let received = db.inbox.receive(tx.tx(), "a", event).await;
        tx.rollback().await;
        received
    };
    let (first, second) = tokio::join!(receive(first, "2"), receive(second, "1"));
    let error = match (first, second) {
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => error,
        both => panic!("{both:?}"),
    };
    assert_eq!(error.verdict(), Verdict::Again);
    assert_eq!(inbox_postgres_error(error).sqlstate(), Some("40P01"));
    db.clean_up().await;
}

pub async fn a_serialization_failure_can_be_retried<C: Connection>() {
    let db = modules::Database::new().await;
    let mut connection = C::connect(&url()).await;
    let mut tx = connection.begin().await;
    tx.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    tx.run("SELECT 1").await.unwrap(); // takes the snapshot
    db.run("INSERT INTO {s}.processed_message (subscriber, event_id, owner) VALUES ('a', 'e', session_user)")
        .await;
    let error = db.inbox.receive(tx.tx(), "a", "e").await.unwrap_err();
    tx.rollback().await;
    assert_eq!(error.verdict(), Verdict::Again);
    assert_eq!(inbox_postgres_error(error).sqlstate(), Some("40001"));
    db.clean_up().await;
}

pub async fn a_lock_timeout_can_be_retried<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut other = connect().await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {}", db.table())).await.unwrap();
    let mut tx = connection.begin().await;
    tx.run("SET LOCAL lock_timeout = '20ms'").await.unwrap();
    let error = db.outbox.enqueue_many(tx.tx(), [event(1), event(2)]).await.unwrap_err();
    tx.rollback().await;
    lock.rollback().await.unwrap();
    assert_eq!(postgres_error(&error).sqlstate(), Some("55P03"));
    assert_eq!(error.verdict(), Verdict::Again);
    db.clean_up().await;
}

pub async fn statements_after_an_error_are_not_retried<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    let error = tx.run("SELECT * FROM nowhere.at_all").await.unwrap_err();
    assert_eq!(error.verdict(), Verdict::Final, "{error:?}");
    let error = db.outbox.enqueue(tx.tx(), event(1)).await.unwrap_err();
    tx.rollback().await;
    assert_eq!(postgres_error(&error).sqlstate(), Some("25P02"));
    assert_eq!(error.verdict(), Verdict::Final);
    assert_eq!(db.rows().await, []);
    db.clean_up().await;
}

/// A restart of PostgreSQL or a failover closes connections in the same way.
pub async fn a_lost_connection_leaves_the_outcome_unknown<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    db.outbox.enqueue(tx.tx(), event(1)).await.unwrap();
    // Only this transaction has written to the table.
    let end = format!(
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_locks
         WHERE relation = '{}'::regclass AND mode = 'RowExclusiveLock'",
        db.table()
    );
    assert_eq!(connect().await.query_one(&end, &[]).await.unwrap().get::<_, i64>(0), 1);
    let error = db.outbox.enqueue(tx.tx(), event(2)).await.unwrap_err();
    drop(tx);
    assert!(postgres_error(&error).is_connection_lost(), "{error:?}");
    assert_eq!(error.verdict(), Verdict::Unknown, "{error:?}");
    assert_eq!(db.rows().await, []);
    db.clean_up().await;
}
