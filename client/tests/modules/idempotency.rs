use std::time::Duration;

use pg_outbox::DatabaseError;
use pg_outbox::idempotency::{
    BODY_BYTES_MAX, Begun, Error, Fingerprint, Guard, Idempotency, InvalidResponse, Key, PhaseError,
    REQUEST_BYTES_MAX, Request, Response, Scope,
};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::database::{Database, connect, pid, pool, until_blocked};

/// A lock time that has expired when the next statement runs.
const SHORT_LOCK: Duration = Duration::from_millis(1);

fn request(key: &str) -> Request {
    let scope = Scope::new("POST", "/payments", "user 1").unwrap();
    Request::new(scope, Key::new(key).unwrap(), Fingerprint::json(br#"{"cents": 10}"#).unwrap())
}

async fn started(idempotency: &Idempotency, client: &Client, key: &str) -> Guard {
    match idempotency.begin(client, &request(key)).await.unwrap() {
        Begun::Started(guard) => guard,
        other => panic!("{other:?}"),
    }
}

async fn finish(guard: &Guard, client: &mut Client, response: &Response) {
    let tx = client.transaction().await.unwrap();
    guard.finish(&tx, response).await.unwrap();
    tx.commit().await.unwrap();
}

async fn replayed(db: &Database, key: &str) -> Response {
    match db.idempotency.begin(&db.client, &request(key)).await.unwrap() {
        Begun::Replay(response) => response,
        other => panic!("{other:?}"),
    }
}

impl Database {
    async fn until_expired(&self) {
        let expired = "SELECT bool_and(locked_until <= clock_timestamp()) FROM {s}.idempotency_key";
        self.until("the lock has expired", expired).await;
    }

    async fn expire(&self) {
        self.run("UPDATE {s}.idempotency_key SET locked_until = clock_timestamp()").await;
    }
}

#[tokio::test]
async fn a_request_is_started_then_in_progress_then_replayed() {
    let mut db = Database::new().await;
    let guard = started(&db.idempotency, &db.client, "k").await;
    assert_eq!((guard.attempts(), guard.recovery_point(), guard.request()), (1, None, None));
    db.run("UPDATE {s}.idempotency_key SET locked_at = locked_at - interval '5 s'").await;
    match db.idempotency.begin(&db.client, &request("k")).await.unwrap() {
        Begun::InProgress { since, retry_after } => {
            assert!((5..30).contains(&since.as_secs()), "{since:?}");
            assert!((30..=60).contains(&retry_after.as_secs()), "{retry_after:?}");
        }
        other => panic!("{other:?}"),
    }
    let response = Response::new(201).header("Location", "/payments/7").body([0, 255, b'x']);
    finish(&guard, &mut db.client, &response).await;
    for _ in 0..2 {
        assert_eq!(replayed(&db, "k").await, response);
    }
    let headers: Vec<_> = response.headers().collect();
    assert_eq!(headers, [("location", "/payments/7")]);
    db.clean_up().await;
}

#[tokio::test]
async fn a_different_request_is_a_mismatch_and_subjects_do_not_share_keys() {
    let mut db = Database::new().await;
    let guard = started(&db.idempotency, &db.client, "k").await;
    let other_body = |body: &[u8]| {
        let scope = Scope::new("POST", "/payments", "user 1").unwrap();
        Request::new(scope, Key::new("k").unwrap(), Fingerprint::json(body).unwrap())
    };
    for finished in [false, true] {
        if finished {
            finish(&guard, &mut db.client, &Response::new(201)).await;
        }
        let mismatch = db.idempotency.begin(&db.client, &other_body(br#"{"cents": 11}"#)).await.unwrap();
        assert!(matches!(mismatch, Begun::Mismatch), "{mismatch:?}");
    }
    let same = db.idempotency.begin(&db.client, &other_body(b"\n{ \"cents\":10 }")).await.unwrap();
    assert!(matches!(same, Begun::Replay(_)), "{same:?}");
    let scope = Scope::new("POST", "/payments", "user 2").unwrap();
    let theirs = Request::new(scope, Key::new("k").unwrap(), Fingerprint::json(b"{}").unwrap());
    let theirs = db.idempotency.begin(&db.client, &theirs).await.unwrap();
    assert!(matches!(theirs, Begun::Started(_)), "{theirs:?}");
    db.clean_up().await;
}

#[tokio::test]
async fn a_rollback_removes_the_response_and_a_retry_can_begin_after_a_release() {
    let mut db = Database::new().await;
    db.run("CREATE TABLE {s}.payment (id bigint)").await;
    let insert = db.sql("INSERT INTO {s}.payment VALUES (1)");
    let guard = started(&db.idempotency, &db.client, "k").await;
    let tx = db.client.transaction().await.unwrap();
    tx.execute(&insert, &[]).await.unwrap();
    guard.finish(&tx, &Response::new(201)).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM {s}.payment").await, 0);
    let again = db.idempotency.begin(&db.client, &request("k")).await.unwrap();
    assert!(matches!(again, Begun::InProgress { .. }), "{again:?}");
    guard.release(&db.client).await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);
    assert_eq!(started(&db.idempotency, &db.client, "k").await.attempts(), 1);
    db.clean_up().await;
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

/// The lock has expired, but the first request has stored its response and not committed yet.
#[tokio::test]
async fn a_takeover_waits_for_an_uncommitted_finish() {
    for commits in [true, false] {
        let mut db = Database::new().await;
        let short_lived = db.idempotency.clone().lock_for(SHORT_LOCK).unwrap();
        let first = started(&short_lived, &db.client, "k").await;
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
            .phase(&mut client, "one", async |tx: &Transaction<'_>| {
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

#[tokio::test]
async fn each_abandoned_request_goes_to_one_completer_and_returns_after_a_pause() {
    let mut db = Database::new().await;
    for n in 0..20 {
        let request = request(&format!("k {n}")).keep_body(format!("body {n}")).unwrap();
        assert!(matches!(db.idempotency.begin(&db.client, &request).await.unwrap(), Begun::Started(_)));
    }
    let young = Duration::from_secs(600);
    assert_eq!(db.idempotency.abandoned(&db.client, Duration::ZERO, 100).await.unwrap().len(), 0, "locked");
    db.expire().await;
    assert_eq!(db.idempotency.abandoned(&db.client, young, 100).await.unwrap().len(), 0, "begun just now");

    let completers = (0..4).map(|_| {
        let idempotency = db.idempotency.clone();
        tokio::spawn(async move { idempotency.abandoned(&connect().await, Duration::ZERO, 7).await.unwrap() })
    });
    let mut guards = Vec::new();
    for completer in completers.collect::<Vec<_>>() {
        guards.extend(completer.await.unwrap());
    }
    // A completer skips rows that another one has locked. The next call returns them.
    guards.extend(db.idempotency.abandoned(&db.client, Duration::ZERO, 20).await.unwrap());
    let mut bodies: Vec<_> = guards.iter().map(|guard| guard.request().unwrap().to_vec()).collect();
    bodies.sort();
    bodies.dedup();
    assert_eq!((guards.len(), bodies.len()), (20, 20), "each request once");
    assert!(
        guards.iter().all(|guard| guard.attempts() == 2 && guard.scope().as_str() == "POST /payments user 1")
    );

    // One request is finished. The others are abandoned again and are not returned before their pause has passed.
    let finished = guards.pop().unwrap();
    finish(&finished, &mut db.client, &Response::new(200)).await;
    drop(guards);
    db.expire().await;
    assert_eq!(
        db.idempotency.abandoned(&db.client, Duration::ZERO, 100).await.unwrap().len(),
        0,
        "the pause"
    );
    db.run("UPDATE {s}.idempotency_key SET retry_at = clock_timestamp()").await;
    let two_attempts = db.idempotency.clone().attempts_max(2);
    assert_eq!(
        two_attempts.abandoned(&db.client, Duration::ZERO, 100).await.unwrap().len(),
        0,
        "no attempts are left"
    );
    assert_eq!(db.idempotency.abandoned(&db.client, Duration::ZERO, 100).await.unwrap().len(), 19);
    assert_eq!(
        db.number("SELECT count(*) FROM {s}.idempotency_key WHERE request IS NULL").await,
        1,
        "the body of a finished request is not kept"
    );
    db.clean_up().await;
}

#[tokio::test]
async fn the_pause_of_an_abandoned_request_grows_up_to_an_hour() {
    let db = Database::new().await;
    db.run(
        "INSERT INTO {s}.idempotency_key (scope, key, fingerprint, locked_until, attempts)
         SELECT 's', i::text, sha256(''), clock_timestamp(), i FROM generate_series(1, 19) AS i, generate_series(1, 1)",
    )
    .await;
    assert_eq!(db.idempotency.abandoned(&db.client, Duration::ZERO, 100).await.unwrap().len(), 19);
    let outside = "SELECT count(*) FROM {s}.idempotency_key
                   WHERE retry_at NOT BETWEEN locked_until - interval '1 s'
                     AND locked_until + least(power(2, attempts - 1), 3600) * interval '1 s' + interval '1 s'";
    assert_eq!(db.number(outside).await, 0);
    db.clean_up().await;
}

#[tokio::test]
async fn the_reaper_deletes_finished_requests_and_reports_unfinished_ones() {
    let db = Database::new().await;
    db.run(
        "INSERT INTO {s}.idempotency_key (scope, key, fingerprint, created_at, locked_until, finished_at, status)
         SELECT 's', 'old ' || i, sha256(''), now() - interval '3 days', now(), now() - interval '25 h', 200
         FROM generate_series(1, 12) AS i
         UNION ALL
         SELECT 's', 'young ' || i, sha256(''), now() - interval '3 days', now(), now() - interval '23 h', 200
         FROM generate_series(1, 5) AS i
         UNION ALL
         SELECT 's', 'unfinished ' || i, sha256(''), now() - i * interval '1 day', now(), NULL, NULL
         FROM generate_series(1, 3) AS i",
    )
    .await;
    for expected in [10, 2, 0] {
        assert_eq!(db.number("SELECT {s}.idempotency_reap(interval '24 h', 10)::bigint").await, expected);
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 8);
    let unfinished = "SELECT requests FROM {s}.idempotency_unfinished(interval '36 h') WHERE oldest < now() - interval '2 days'";
    assert_eq!(db.number(unfinished).await, 2);
    db.clean_up().await;
}

#[tokio::test]
async fn invalid_input_is_rejected_and_the_transaction_stays_usable() {
    let mut db = Database::new().await;
    let guard = started(&db.idempotency, &db.client, "k").await;
    let tx = db.client.transaction().await.unwrap();
    let bytes = 10 * 1024 * 1024;
    let refused = guard.finish(&tx, &Response::new(200).body(vec![0; bytes])).await;
    assert!(matches!(refused, Err(Error::Response(InvalidResponse::BodyTooLarge { .. }))), "{refused:?}");
    let refused = guard.finish(&tx, &Response::new(503)).await;
    assert!(matches!(refused, Err(Error::Response(InvalidResponse::Transient { status: 503 }))));
    let refused = guard.reach(&tx, "", &serde_json::Value::Null).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let large = Response::new(200).body(vec![7; BODY_BYTES_MAX]);
    guard.finish(&tx, &large).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(replayed(&db, "k").await, large);

    assert!(matches!(
        request("k").keep_body(vec![0; REQUEST_BYTES_MAX + 1]),
        Err(Error::RequestTooLarge { .. })
    ));
    for lock_for in [Duration::ZERO, Duration::from_secs(86_401)] {
        assert!(matches!(db.idempotency.clone().lock_for(lock_for), Err(Error::LockTime)));
    }
    db.run("DROP FUNCTION {s}.idempotency_begin").await;
    let error = db.idempotency.begin(&db.client, &request("k")).await.unwrap_err();
    assert!(matches!(error, Error::Database(DatabaseError::NotInstalled { .. })), "{error:?}");
    assert!(error.to_string().contains("migrate --with idempotency"), "{error}");
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

#[tokio::test]
async fn begin_works_with_a_stricter_default_isolation_level() {
    for level in ["repeatable read", "serializable"] {
        let mut db = Database::new().await;
        db.run(&format!("SET default_transaction_isolation = '{level}'")).await;
        let guard = started(&db.idempotency, &db.client, "k").await;
        finish(&guard, &mut db.client, &Response::new(200)).await;
        assert_eq!(replayed(&db, "k").await.status(), 200);
        db.clean_up().await;
    }
}
