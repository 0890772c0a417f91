//! Phases: a retry resumes after the last one that has committed.

use pg_idempotency::idempotency::{Begun, Error, PhaseError, Response};
use pg_idempotency::retry::{Classify, Verdict};
use tokio_postgres::Transaction;

use super::{finish, replayed, request, started};
use crate::database::{Database, connect, pid, pool, until_blocked};

#[tokio::test]
async fn a_retry_resumes_after_the_last_phase() {
    let mut db = Database::new().await;
    db.run("CREATE TABLE {s}.payment (id bigint GENERATED ALWAYS AS IDENTITY, phase text)").await;
    let insert = db.sql("INSERT INTO {s}.payment (phase) VALUES ($1) RETURNING id");
    let record = async |tx: &Transaction<'_>| -> Result<i64, tokio_postgres::Error> {
        Ok(tx.query_one(&insert, &[&"recorded"]).await?.get(0))
    };
    let charge = async |tx: &Transaction<'_>| -> Result<String, tokio_postgres::Error> {
        tx.query_one(&insert, &[&"charged"]).await?;
        Ok("charge 7".to_owned())
    };
    let mut guard = started(&db.idempotency, &db.client, "k").await;
    assert_eq!(guard.phase(&mut db.client, "recorded", &record).await.unwrap(), 1);
    let foreign_key = guard.foreign_key("charge");
    drop(guard); // the process dies
    db.expire().await;

    let mut guard = started(&db.idempotency, &db.client, "k").await;
    assert_eq!((guard.attempts(), guard.recovery_point()), (2, Some("recorded")));
    assert_eq!(guard.foreign_key("charge"), foreign_key);
    assert_ne!(guard.foreign_key("refund"), foreign_key);
    assert_eq!(
        guard.phase(&mut db.client, "recorded", &record).await.unwrap(),
        1,
        "the phase does not run again"
    );
    // A failed phase leaves no rows and keeps the recovery point.
    let failed: Result<i64, _> = guard
        .phase(&mut db.client, "charged", async |tx: &Transaction<'_>| {
            tx.query_one(&insert, &[&"half"]).await.unwrap();
            Err("the provider is unavailable")
        })
        .await;
    assert!(matches!(failed, Err(PhaseError::Work("the provider is unavailable"))), "{failed:?}");
    assert_eq!(guard.phase(&mut db.client, "charged", &charge).await.unwrap(), "charge 7");
    drop(guard);
    db.expire().await;

    let guard = started(&db.idempotency, &db.client, "k").await;
    assert_eq!((guard.attempts(), guard.recovery_point()), (3, Some("charged")));
    assert_eq!(guard.kept::<i64>("recorded").unwrap(), Some(1));
    assert_eq!(guard.kept::<String>("charged").unwrap().as_deref(), Some("charge 7"));
    assert_eq!(guard.kept::<i64>("sent").unwrap(), None);
    assert!(matches!(guard.kept::<i64>("charged"), Err(Error::Stored(_))));
    finish(&guard, &mut db.client, &Response::new(201)).await;
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 2);
    db.clean_up().await;
}

#[tokio::test]
async fn a_phase_after_a_takeover_fails_and_a_release_keeps_the_phases() {
    let mut db = Database::new().await;
    let mut first = started(&db.idempotency, &db.client, "k").await;
    let nothing = async |_: &Transaction<'_>| Ok::<(), ()>(());
    first.phase(&mut db.client, "one", &nothing).await.unwrap();
    db.expire().await;
    let second = started(&db.idempotency, &db.client, "k").await;
    let refused = first.phase(&mut db.client, "two", &nothing).await;
    assert!(matches!(refused, Err(PhaseError::Idempotency(Error::LockLost))), "{refused:?}");
    second.release(&db.client).await.unwrap();
    let third = started(&db.idempotency, &db.client, "k").await;
    assert_eq!((third.attempts(), third.recovery_point()), (3, Some("one")));
    db.clean_up().await;
}

/// A retry reads the result back. If that failed, no attempt could continue after the phase.
#[tokio::test]
async fn a_phase_whose_result_cannot_be_read_back_is_not_committed() {
    let mut db = Database::new().await;
    let mut guard = started(&db.idempotency, &db.client, "k").await;
    // JSON has no NaN.
    let refused = guard.phase(&mut db.client, "one", async |_: &Transaction<'_>| Ok::<_, ()>(f64::NAN)).await;
    assert!(matches!(refused, Err(PhaseError::Data(_))), "{refused:?}");
    assert_eq!(guard.recovery_point(), None);
    let done = guard.phase(&mut db.client, "one", async |_: &Transaction<'_>| Ok::<_, ()>(1.5)).await;
    assert_eq!(done.unwrap(), 1.5);
    db.clean_up().await;
}

#[tokio::test]
async fn a_refused_connection_has_had_no_effect() {
    let refused = tokio_postgres::connect("host=127.0.0.1 port=1", tokio_postgres::NoTls).await;
    let error = refused.err().unwrap();
    assert_eq!(error.verdict(), Verdict::Again, "{error:?}");
}

/// A timeout, for example, drops the future.
#[tokio::test]
async fn a_phase_whose_future_was_dropped_during_its_commit_does_not_run_again() {
    let mut db = Database::new().await;
    db.run(
        "CREATE TABLE {s}.payment (id bigint GENERATED ALWAYS AS IDENTITY);
         CREATE FUNCTION {s}.wait() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_advisory_xact_lock(hashtext('{s}')); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON {s}.payment DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION {s}.wait()",
    )
    .await;
    let insert = db.sql("INSERT INTO {s}.payment DEFAULT VALUES RETURNING id");
    let record = async |tx: &Transaction<'_>| -> Result<i64, tokio_postgres::Error> {
        Ok(tx.query_one(&insert, &[]).await?.get(0))
    };
    let mut guard = started(&db.idempotency, &db.client, "k").await;
    db.run("SELECT pg_advisory_lock(hashtext('{s}'))").await;
    let mut slow = connect().await;
    let backend = pid(&slow).await;
    tokio::select! {
        done = guard.phase(&mut slow, "recorded", &record) => panic!("{done:?}"),
        () = until_blocked(backend) => {}
    }
    db.run("SELECT pg_advisory_unlock(hashtext('{s}'))").await;
    db.until("the phase is committed", "SELECT count(*) = 1 FROM {s}.payment").await;
    let again = guard.phase(&mut db.client, "recorded", &record).await;
    assert!(matches!(again, Err(PhaseError::Uncertain)), "{again:?}");
    guard.release(&db.client).await.unwrap();
    let mut guard = started(&db.idempotency, &db.client, "k").await;
    assert_eq!(guard.phase(&mut db.client, "recorded", &record).await.unwrap(), 1);
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn a_phase_that_was_rolled_back_by_its_commit_can_run_again() {
    let mut db = Database::new().await;
    db.run(
        "CREATE TABLE {s}.late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO {s}.late VALUES (1)",
    )
    .await;
    let insert = db.sql("INSERT INTO {s}.late VALUES (1)");
    let record = async |tx: &Transaction<'_>| tx.execute(&insert, &[]).await;
    let mut guard = started(&db.idempotency, &db.client, "k").await;
    let refused = guard.phase(&mut db.client, "recorded", &record).await;
    assert!(matches!(refused, Err(PhaseError::Commit(_))), "{refused:?}");
    db.run("DELETE FROM {s}.late").await;
    assert_eq!(guard.phase(&mut db.client, "recorded", &record).await.unwrap(), 1);
    db.clean_up().await;
}

/// Also shows that the future of a phase can be spawned.
#[tokio::test]
async fn a_phase_runs_in_a_task_and_with_a_pooled_client() {
    let db = Database::new().await;
    let (pool, idempotency) = (pool(1), db.idempotency.clone());
    let done = tokio::spawn(async move {
        let mut client = pool.get().await.unwrap();
        let Begun::Started(mut guard) = idempotency.begin(&client, &request("k")).await.unwrap() else {
            panic!("the key is new")
        };
        let one: i32 = guard
            .phase(&mut client, "one", async |tx| {
                tx.query_one("SELECT 1", &[]).await.map(|row| row.get::<_, i32>(0))
            })
            .await
            .unwrap();
        guard.extend(&client).await.unwrap();
        let tx = client.transaction().await.unwrap();
        guard.finish(&tx, &Response::new(200).body("pooled")).await.unwrap();
        tx.commit().await.unwrap();
        one
    });
    assert_eq!(done.await.unwrap(), 1);
    assert_eq!(replayed(&db, "k").await.bytes(), b"pooled");
    db.clean_up().await;
}
