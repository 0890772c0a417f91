use pg_idempotency::retry::{Classify, Verdict};
use pg_idempotency::{DatabaseError, inbox};
use pg_outbox::{Error, Event, PostgresError};

use crate::database::{Database, connect, url};
use crate::drivers::Tx;
use crate::modules;
use crate::phased::Phased;

fn event(key: impl std::fmt::Display) -> Event {
    Event::new("order", key, "E").tombstone()
}

fn postgres_error(error: &Error) -> &PostgresError {
    match error {
        Error::Postgres { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

fn inbox_postgres_error(error: inbox::Error) -> PostgresError {
    match error {
        inbox::Error::Database(DatabaseError::Postgres { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// Two transactions receive two events in opposite orders. PostgreSQL aborts one of them.
pub async fn a_deadlock_can_be_retried<C: Phased>() {
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

pub async fn a_serialization_failure_can_be_retried<C: Phased>() {
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

pub async fn a_lock_timeout_can_be_retried<C: Phased>() {
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

pub async fn statements_after_an_error_are_not_retried<C: Phased>() {
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
pub async fn a_lost_connection_leaves_the_outcome_unknown<C: Phased>() {
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

pub async fn rejected_events_are_not_retried<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let check =
        format!("ALTER TABLE {} ADD CONSTRAINT no_robots CHECK (aggregate_id <> 'robot')", db.table());
    db.client.batch_execute(&check).await.unwrap();
    for (rejected, sqlstate) in [
        (Event::new("order", 1, "E").bytes("{ invalid"), "22P02"),
        (Event::new("order", 1, "E").bytes(b"\"invalid \xff\"".to_vec()), "22021"),
        (event("robot"), "23514"),
    ] {
        let mut tx = connection.begin().await;
        let error = db.outbox.enqueue(tx.tx(), rejected).await.unwrap_err();
        tx.rollback().await;
        assert_eq!((postgres_error(&error).sqlstate(), error.verdict()), (Some(sqlstate), Verdict::Final));
    }
    db.clean_up().await;
}
