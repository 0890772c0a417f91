use pg_outbox::{Error, Event, testing};

use super::sqlx::postgres::PgConnectOptions;
use super::sqlx::{self, Connection, PgConnection, PgPool, Row};
use crate::database;

fn event() -> Event {
    Event::new("order", 1, "E").tombstone()
}

async fn assert_nothing_is_stored(db: &database::Database, connection: &mut PgConnection) {
    let refused = db.outbox.enqueue(&mut *connection, event()).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    let refused = db.outbox.enqueue_many(&mut *connection, [event(), event()]).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
}

#[tokio::test]
async fn without_an_open_transaction_nothing_is_stored() {
    let db = database::Database::new().await;
    let mut connection = PgConnection::connect(&database::url()).await.unwrap();
    assert_nothing_is_stored(&db, &mut connection).await;
    sqlx::raw_sql("BEGIN").execute(&mut connection).await.unwrap(); // sqlx does not count this as a transaction
    assert_nothing_is_stored(&db, &mut connection).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.unwrap();

    for commits in [true, false] {
        let mut tx = connection.begin().await.unwrap();
        db.outbox.enqueue(&mut *tx, event()).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_nothing_is_stored(&db, &mut connection).await;
    }
    let mut tx = connection.begin().await.unwrap();
    db.outbox.enqueue(&mut *tx, event()).await.unwrap();
    drop(tx);
    assert_nothing_is_stored(&db, &mut connection).await;
    connection.ping().await.unwrap(); // sends the rollback, for which sqlx waits for the next statement
    assert_eq!(db.rows().await.len(), 1);
    db.clean_up().await;
}

/// The constraint is checked by the COMMIT, so PostgreSQL has rolled back when the call fails.
#[tokio::test]
async fn after_a_failed_commit_nothing_is_stored() {
    let db = database::Database::new().await;
    let mut connection = PgConnection::connect(&database::url()).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    sqlx::raw_sql(
        "CREATE TEMPORARY TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO late VALUES (1), (1)",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    db.outbox.enqueue(&mut *tx, event()).await.unwrap();
    tx.commit().await.unwrap_err();
    assert_nothing_is_stored(&db, &mut connection).await;
    assert_eq!(db.rows().await.len(), 0);
    db.clean_up().await;
}

#[tokio::test]
async fn a_savepoint_and_a_connection_of_a_pool_are_accepted() {
    let db = database::Database::new().await;
    let pool = PgPool::connect(&database::url()).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    assert!(matches!(db.outbox.enqueue(&mut *connection, event()).await, Err(Error::NoTransaction { .. })));
    let mut tx = connection.begin().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    db.outbox.enqueue(&mut *savepoint, Event::new("order", "undone", "E").tombstone()).await.unwrap();
    savepoint.rollback().await.unwrap();
    db.outbox.enqueue(&mut *tx, Event::new("order", "kept", "E").tombstone()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.keys().await, ["kept"]);
    drop(connection);
    pool.close().await;
    db.clean_up().await;
}

/// When a nested transaction cannot begin, sqlx rolls back the outer one, and its object remains.
#[tokio::test]
async fn after_a_failed_nested_begin_nothing_is_stored() {
    let db = database::Database::new().await;
    let mut connection = PgConnection::connect(&database::url()).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    sqlx::raw_sql("SELECT 1 / 0").execute(&mut *tx).await.unwrap_err();
    tx.begin().await.map(drop).unwrap_err();
    let refused = db.outbox.enqueue(&mut tx, event()).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    tx.commit().await.unwrap();
    connection.ping().await.unwrap();
    assert_eq!(db.rows().await.len(), 0);
    db.clean_up().await;
}

#[tokio::test]
async fn a_savepoint_rolls_back_events_and_a_pool_can_drain() {
    let db = database::Database::new().await;
    let pool = PgPool::connect(&database::url()).await.unwrap();
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
}

/// Why `statement_cache_capacity(0)` does not help behind a pooler without prepared statements.
#[tokio::test]
async fn without_a_statement_cache_each_call_leaves_a_named_statement() {
    let db = database::Database::new().await;
    let options: PgConnectOptions = database::url().parse().unwrap();
    let mut connection = PgConnection::connect_with(&options.statement_cache_capacity(0)).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let mut left = Vec::new();
    for _ in 0..3 {
        db.outbox.enqueue(&mut tx, event()).await.unwrap();
        let names = sqlx::raw_sql("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'sqlx_s_%'");
        let row = names.fetch_one(&mut *tx).await.unwrap();
        left.push(row.try_get::<i64, _>(0).unwrap());
    }
    assert!(left[0] < left[1] && left[1] < left[2], "{left:?}");
    tx.rollback().await.unwrap();
    db.clean_up().await;
}
