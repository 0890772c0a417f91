//! Expired locks: another request takes over, and the first one loses its lock.

use std::time::Duration;

use pg_idempotency::idempotency::{Begun, Error, Response};
use tokio_postgres::IsolationLevel;

use super::{replayed, request, started};
use crate::database::{Database, connect, pid, pool, until_blocked};

/// A lock time that has expired when the next statement runs.
const SHORT_LOCK: Duration = Duration::from_millis(1);

impl Database {
    async fn until_expired(&self) {
        let expired = "SELECT bool_and(locked_until <= clock_timestamp()) FROM {s}.idempotency_key";
        self.until("the lock has expired", expired).await;
    }
}

#[tokio::test]
async fn a_late_finish_after_a_takeover_rolls_back_the_business_change() {
    let mut db = Database::new().await;
    db.run("CREATE TABLE {s}.payment (by text)").await;
    let pay = db.sql("INSERT INTO {s}.payment VALUES ($1)");
    let short_lived = db.idempotency.clone().lock_for(SHORT_LOCK).unwrap();
    let mut slow = connect().await;
    let first = started(&short_lived, &slow, "k").await;
    // The lock expires while the first request is still working.
    let late = slow.transaction().await.unwrap();
    late.execute(&pay, &[&"first"]).await.unwrap();
    db.until_expired().await;
    let second = started(&db.idempotency, &db.client, "k").await;
    assert_eq!(second.attempts(), 2);

    let refused = first.finish(&late, &Response::new(201)).await;
    assert!(matches!(refused, Err(Error::LockLost)), "{refused:?}");
    // The application ignores the error, but PostgreSQL rolls back the failed transaction at the COMMIT.
    late.commit().await.unwrap();
    assert!(matches!(first.extend(&slow).await, Err(Error::LockLost)));
    first.release(&slow).await.unwrap(); // has no effect

    let tx = db.client.transaction().await.unwrap();
    tx.execute(&pay, &[&"second"]).await.unwrap();
    second.finish(&tx, &Response::new(201).body("second")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(replayed(&db, "k").await.bytes(), b"second");
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment WHERE by = 'second'").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 1);
    db.clean_up().await;
}

/// Otherwise, retries of one request that takes long to commit could use up a pool.
#[tokio::test]
async fn while_the_lock_is_held_no_begin_waits_for_an_open_transaction() {
    let mut db = Database::new().await;
    let first = started(&db.idempotency, &db.client, "k").await;
    let other = connect().await;
    other.batch_execute("SET lock_timeout = '1ms'").await.unwrap();
    for finishes in [false, true] {
        let tx = db.client.transaction().await.unwrap();
        if finishes {
            first.finish(&tx, &Response::new(201)).await.unwrap();
        } else {
            first.reach(&tx, "charged", &serde_json::Value::Null).await.unwrap();
        }
        let begun = db.idempotency.begin(&other, &request("k")).await.unwrap();
        assert!(matches!(begun, Begun::InProgress { .. }), "{begun:?}");
        tx.commit().await.unwrap();
    }
    assert_eq!(replayed(&db, "k").await.status(), 201);
    db.clean_up().await;
}

/// The lock has expired, but the first request has stored its response and not committed yet.
#[tokio::test]
async fn a_takeover_waits_for_an_uncommitted_finish() {
    for commits in [true, false] {
        let mut db = Database::new().await;
        let short_lived = db.idempotency.clone().lock_for(SHORT_LOCK).unwrap();
        let first = started(&short_lived, &db.client, "k").await;
        db.until_expired().await;
        let tx = db.client.transaction().await.unwrap();
        first.finish(&tx, &Response::new(201).body("first")).await.unwrap();

        let (other, idempotency) = (connect().await, db.idempotency.clone());
        let waiting = pid(&other).await;
        let second = tokio::spawn(async move { idempotency.begin(&other, &request("k")).await.unwrap() });
        until_blocked(waiting).await;
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        match second.await.unwrap() {
            Begun::Replay(response) if commits => assert_eq!(response.bytes(), b"first"),
            Begun::Started(guard) if !commits => assert_eq!(guard.attempts(), 2),
            other => panic!("first commits: {commits}, second: {other:?}"),
        }
        db.clean_up().await;
    }
}

#[tokio::test]
async fn exactly_one_of_many_takeovers_succeeds() {
    let db = Database::new().await;
    let short_lived = db.idempotency.clone().lock_for(SHORT_LOCK).unwrap();
    drop(started(&short_lived, &db.client, "k").await);
    db.until_expired().await;
    let pool = pool(16);
    let takers = (0..64).map(|_| {
        let (pool, idempotency) = (pool.clone(), db.idempotency.clone());
        tokio::spawn(async move {
            let client = pool.get().await.unwrap();
            matches!(idempotency.begin(&client, &request("k")).await.unwrap(), Begun::Started(_))
        })
    });
    let mut started = 0;
    for taker in takers.collect::<Vec<_>>() {
        started += usize::from(taker.await.unwrap());
    }
    assert_eq!(started, 1);
    assert_eq!(db.number("SELECT attempts::bigint FROM {s}.idempotency_key").await, 2);
    db.clean_up().await;
}

#[tokio::test]
async fn in_stricter_isolation_levels_a_lost_lock_is_an_error() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let db = Database::new().await;
        let first = started(&db.idempotency, &db.client, "k").await;
        let mut slow = connect().await;
        let tx = slow.build_transaction().isolation_level(level).start().await.unwrap();
        tx.query_one("SELECT 1", &[]).await.unwrap(); // takes the snapshot
        db.expire().await;
        drop(started(&db.idempotency, &db.client, "k").await);
        let error = first.finish(&tx, &Response::new(200)).await.unwrap_err();
        let Error::Database(error) = error else { panic!("{error:?}") };
        assert_eq!(error.postgres().sqlstate(), Some("40001"), "{level:?}");
        tx.rollback().await.unwrap();
        let again = slow.build_transaction().isolation_level(level).start().await.unwrap();
        assert!(matches!(first.finish(&again, &Response::new(200)).await, Err(Error::LockLost)), "{level:?}");
        drop(again);
        db.clean_up().await;
    }
}
