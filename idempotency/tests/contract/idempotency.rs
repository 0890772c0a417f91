use std::time::Duration;

use pg_idempotency::idempotency::{
    Begun, Error, Fingerprint, Guard, Idempotency, Key, PhaseError, Request, Response, Scope,
};
use pg_idempotency::retry::{Classify, Verdict};

use crate::drivers::Tx;
use crate::modules::{Database, url};
use crate::phased::Phased;

fn request(body: &[u8]) -> Request {
    let scope = Scope::new("POST", "/payments", "user 1").unwrap();
    Request::new(scope, Key::new("k").unwrap(), Fingerprint::json(body).unwrap())
}

async fn begin<C: Phased>(idempotency: &Idempotency, connection: &mut C) -> Begun {
    idempotency.begin(connection.client(), &request(br#"{"cents": 10}"#)).await.unwrap()
}

async fn started<C: Phased>(db: &Database, connection: &mut C) -> Guard {
    match begin(&db.idempotency, connection).await {
        Begun::Started(guard) => guard,
        other => panic!("{other:?}"),
    }
}

async fn expire(db: &Database) {
    db.run("UPDATE {s}.idempotency_key SET locked_until = clock_timestamp()").await;
}

pub async fn a_request_is_started_then_in_progress_then_replayed<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let guard = started(&db, &mut connection).await;
    let again = begin(&db.idempotency, &mut connection).await;
    assert!(
        matches!(again, Begun::InProgress { retry_after, .. } if retry_after > Duration::ZERO),
        "{again:?}"
    );
    guard.extend(connection.client()).await.unwrap();
    let response = Response::new(201).header("Location", "/payments/7").body([0, 255, b'x']);
    for commits in [false, true] {
        let mut tx = connection.begin().await;
        guard.finish(tx.tx(), &response).await.unwrap();
        if commits { tx.commit().await } else { tx.rollback().await }
    }
    for _ in 0..2 {
        match begin(&db.idempotency, &mut connection).await {
            Begun::Replay(replayed) => assert_eq!(replayed, response),
            other => panic!("{other:?}"),
        }
    }
    db.clean_up().await;
}

pub async fn a_different_request_with_the_same_key_is_a_mismatch<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    started(&db, &mut connection).await;
    let other = db.idempotency.begin(connection.client(), &request(br#"{"cents": 11}"#)).await.unwrap();
    assert!(matches!(other, Begun::Mismatch), "{other:?}");
    db.clean_up().await;
}

pub async fn a_late_finish_rolls_back_the_business_change<C: Phased>() {
    let db = Database::new().await;
    let (mut slow, mut connection) = (C::connect(&url()).await, C::connect(&url()).await);
    db.run("CREATE TABLE {s}.payment (by text)").await;
    let first = started(&db, &mut slow).await;
    let mut late = slow.begin().await;
    late.run(&db.sql("INSERT INTO {s}.payment VALUES ('first')")).await.unwrap();
    expire(&db).await;
    let second = started(&db, &mut connection).await;
    assert_eq!(second.attempts(), 2);
    let refused = first.finish(late.tx(), &Response::new(201)).await;
    assert!(matches!(refused, Err(Error::LockLost)), "{refused:?}");
    late.rollback().await;
    assert!(matches!(first.extend(slow.client()).await, Err(Error::LockLost)));
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 0);
    db.clean_up().await;
}

pub async fn a_retry_can_begin_after_a_release<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let guard = started(&db, &mut connection).await;
    guard.release(connection.client()).await.unwrap();
    assert_eq!(started(&db, &mut connection).await.attempts(), 1);
    db.clean_up().await;
}

pub async fn a_retry_resumes_after_the_last_phase<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    db.run("CREATE TABLE {s}.payment (id bigint GENERATED ALWAYS AS IDENTITY)").await;
    let insert = db.sql("INSERT INTO {s}.payment DEFAULT VALUES RETURNING id");
    let mut guard = started(&db, &mut connection).await;
    assert_eq!(connection.phase(&mut guard, "recorded", &insert).await.unwrap(), 1);
    assert_eq!(
        connection.phase(&mut guard, "recorded", &insert).await.unwrap(),
        1,
        "the phase does not run again"
    );
    let failed = connection.phase(&mut guard, "charged", "SELECT 1 / 0::bigint AS id").await;
    assert!(matches!(failed, Err(PhaseError::Work(_))), "{failed:?}");
    assert_eq!(guard.recovery_point(), Some("recorded"));
    drop(guard); // the process dies
    expire(&db).await;
    let mut guard = started(&db, &mut connection).await;
    assert_eq!((guard.attempts(), guard.recovery_point()), (2, Some("recorded")));
    assert_eq!(connection.phase(&mut guard, "recorded", &insert).await.unwrap(), 1);
    assert_eq!(connection.phase(&mut guard, "charged", &insert).await.unwrap(), 2);
    assert_eq!(guard.kept::<i64>("charged").unwrap(), Some(2));
    let mut tx = connection.begin().await;
    guard.finish(tx.tx(), &Response::new(201)).await.unwrap();
    tx.commit().await;
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 2);
    db.clean_up().await;
}

pub async fn a_phase_after_a_takeover_fails<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    db.run("CREATE TABLE {s}.payment (id bigint GENERATED ALWAYS AS IDENTITY)").await;
    let insert = db.sql("INSERT INTO {s}.payment DEFAULT VALUES RETURNING id");
    let mut first = started(&db, &mut connection).await;
    expire(&db).await;
    let second = started(&db, &mut connection).await;
    let refused = connection.phase(&mut first, "recorded", &insert).await;
    assert!(matches!(refused, Err(PhaseError::Idempotency(Error::LockLost))), "{refused:?}");
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 0);
    // The connection is still usable.
    second.release(connection.client()).await.unwrap();
    db.clean_up().await;
}

/// As after a restart of PostgreSQL during the COMMIT.
pub async fn no_phase_runs_after_a_commit_whose_outcome_is_unknown<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    db.run(
        "CREATE TABLE {s}.payment (id bigint GENERATED ALWAYS AS IDENTITY);
         CREATE FUNCTION {s}.end_backend() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER end_backend AFTER INSERT ON {s}.payment DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION {s}.end_backend()",
    )
    .await;
    let insert = db.sql("INSERT INTO {s}.payment DEFAULT VALUES RETURNING id");
    let mut guard = started(&db, &mut connection).await;
    let lost = connection.phase(&mut guard, "recorded", &insert).await;
    assert!(matches!(lost, Err(PhaseError::Commit(_))), "{lost:?}");
    db.run("DROP TRIGGER end_backend ON {s}.payment").await;
    let mut other = C::connect(&url()).await;
    let again = other.phase(&mut guard, "recorded", &insert).await;
    assert!(matches!(again, Err(PhaseError::Uncertain)), "{again:?}");
    assert_eq!(again.unwrap_err().verdict(), Verdict::Final);
    guard.release(other.client()).await.unwrap();
    assert_eq!(started(&db, &mut other).await.attempts(), 1);
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 0);
    db.clean_up().await;
}

pub async fn an_abandoned_request_is_taken_over_once<C: Phased>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let request = request(b"{}").keep_body("body").unwrap();
    let begun = db.idempotency.begin(connection.client(), &request).await.unwrap();
    assert!(matches!(begun, Begun::Started(_)));
    expire(&db).await;
    for expected in [1, 0] {
        let guards = db.idempotency.abandoned(connection.client(), Duration::ZERO, 10).await.unwrap();
        assert_eq!(guards.len(), expected);
        assert!(guards.iter().all(|guard| guard.request() == Some(b"body") && guard.attempts() == 2));
    }
    db.clean_up().await;
}
