use std::time::Duration;

use pg_outbox::idempotency::{Begun, Error, Fingerprint, Key, Request, Scope};
use pg_outbox::{DatabaseError, Event, testing};

use super::sqlx::postgres::PgPoolOptions;
use super::sqlx::{Connection, PgConnection, PgPool};
use crate::{database, modules};

fn request() -> Request {
    let scope = Scope::new("POST", "/payments", 1).unwrap();
    Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b""))
}

#[tokio::test]
async fn a_pool_can_begin_a_request_and_a_savepoint_rolls_back_events() {
    let (db, modules) = (database::Database::new().await, modules::Database::new().await);
    let pool = PgPool::connect(&database::url()).await.unwrap();
    let begun = modules.idempotency.begin(&pool, &request()).await.unwrap();
    assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
    let mut tx = pool.begin().await.unwrap();
    db.outbox.enqueue(&mut tx, Event::new("order", "kept", "E").tombstone()).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    db.outbox.enqueue(&mut savepoint, Event::new("order", "undone", "E").tombstone()).await.unwrap();
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    let drained = testing::drain(&pool, testing::Filter::new().outbox(&db.outbox)).await.unwrap();
    assert_eq!(drained.iter().map(|event| &*event.aggregate_id).collect::<Vec<_>>(), ["kept"]);
    pool.close().await;
    db.clean_up().await;
    modules.clean_up().await;
}

/// `&mut *tx` is a connection too, but other clients would not see a lock in the application's open transaction.
#[tokio::test]
async fn a_connection_with_an_open_transaction_is_rejected() {
    let db = modules::Database::new().await;
    let mut connection = PgConnection::connect(&modules::url()).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let refused = db.idempotency.begin(&mut *tx, &request()).await;
    let Err(Error::Database(DatabaseError::InTransaction { source, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(source.sqlstate(), Some("25001"));
    tx.rollback().await.unwrap();
    let begun = db.idempotency.begin(&mut connection, &request()).await.unwrap();
    assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
    db.clean_up().await;
}

#[tokio::test]
async fn a_pool_without_a_free_connection_can_be_retried() {
    use pg_outbox::retry::{Classify, Verdict};
    let db = modules::Database::new().await;
    let options = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(50));
    let pool = options.connect(&modules::url()).await.unwrap();
    let taken = pool.acquire().await.unwrap();
    let error = db.idempotency.begin(&pool, &request()).await.unwrap_err();
    assert_eq!(error.verdict(), Verdict::Again, "{error:?}");
    drop(taken);
    assert!(matches!(db.idempotency.begin(&pool, &request()).await.unwrap(), Begun::Started(_)));
    pool.close().await;
    db.clean_up().await;
}
