use deadpool_postgres::{Manager, Pool};
use pg_outbox::{Error, Event};
use tokio_postgres::NoTls;

use crate::database::{Database, url};

/// Has one connection, so the calls reuse its prepared statements.
fn pool() -> Pool {
    let manager = Manager::new(url().parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(1).build().unwrap()
}

async fn enqueue_three(db: &Database, pool: &Pool, payload: &[u8]) -> Result<(), Error> {
    let mut client = pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let event = |id: &str| Event::new("order", id, "E").bytes(payload).header("h", id);
    db.outbox.enqueue(&tx, event("1")).await?;
    db.outbox.enqueue_many(&tx, [event("2"), event("3")]).await?;
    tx.commit().await.unwrap();
    Ok(())
}

#[tokio::test]
async fn a_deadpool_transaction_stores_the_same_rows() {
    let pool = pool();
    for column_type in ["json", "jsonb", "bytea"] {
        let db = Database::with_payload(column_type).await;
        for _ in 0..2 {
            enqueue_three(&db, &pool, br#"{"a": 1}"#).await.unwrap();
        }
        let rows = db.rows().await;
        assert_eq!(
            rows.iter().map(|row| &*row.aggregate_id).collect::<Vec<_>>(),
            ["1", "2", "3", "1", "2", "3"]
        );
        for row in rows {
            assert_eq!(row.payload.as_deref(), Some(&br#"{"a": 1}"#[..]), "{column_type}");
            assert_eq!(row.headers, Some(format!(r#"{{"h": "{}"}}"#, row.aggregate_id)));
        }
        db.clean_up().await;
    }
}

#[tokio::test]
async fn a_deadpool_connection_recovers_from_a_changed_column_type() {
    let (pool, db) = (pool(), Database::with_payload("bytea").await);
    enqueue_three(&db, &pool, b"{}").await.unwrap();
    db.set_payload("json").await;
    assert!(matches!(enqueue_three(&db, &pool, b"{}").await, Err(Error::Postgres { .. })));
    enqueue_three(&db, &pool, b"{}").await.unwrap();
    assert_eq!(db.rows().await.len(), 6);
    db.clean_up().await;
}

#[tokio::test]
async fn deadpool_reports_a_missing_table() {
    let (pool, mut db) = (pool(), Database::new().await);
    db.outbox = pg_outbox::Outbox::new("nowhere.outbox").unwrap();
    assert!(matches!(enqueue_three(&db, &pool, b"{}").await, Err(Error::NoOutbox { .. })));
    db.clean_up().await;
}

#[tokio::test]
async fn the_inner_transaction_of_a_pooled_one_is_accepted() {
    let (pool, db) = (pool(), Database::new().await);
    let mut client = pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let plain: &tokio_postgres::Transaction<'_> = &tx;
    db.outbox.enqueue(plain, Event::new("order", 1, "E").tombstone()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.rows().await.len(), 1);
    db.clean_up().await;
}
