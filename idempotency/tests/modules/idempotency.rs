mod abandoned;
mod phases;
mod takeover;

use std::time::Duration;

use pg_idempotency::DatabaseError;
use pg_idempotency::idempotency::{
    BODY_BYTES_MAX, Begun, Error, Fingerprint, Guard, Idempotency, InvalidResponse, Key, REQUEST_BYTES_MAX,
    Request, Response, Scope,
};
use tokio_postgres::Client;

use crate::database::Database;

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
