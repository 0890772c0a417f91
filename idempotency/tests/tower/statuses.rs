//! The answers of the layer itself.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use deadpool_postgres::{Manager, Pool};
use http_body_util::{Full, Limited};
use pg_idempotency::idempotency::Idempotency;
use pg_idempotency::tower::IdempotencyLayer;
use serde_json::Value;
use tokio_postgres::NoTls;

use crate::api::{Api, Reply, Streamed, keyed, post_to, waiting};
use crate::database::Database;

fn problem(reply: &Reply) -> Value {
    assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{}", reply.text());
    let problem: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(problem["status"], reply.status);
    for name in ["type", "title", "detail"] {
        assert!(problem[name].is_string(), "{name}: {problem}");
    }
    problem
}

#[tokio::test]
async fn request_without_valid_key_gets_400() {
    let db = Database::new().await;
    let api = Api::with(&db, |layer| layer.documentation("https://example.com/keys")).await;
    let requests: [&[(&str, &str)]; 6] = [
        &[],
        &[("idempotency-key", "")],
        &[("idempotency-key", "\"\"")],
        &[("idempotency-key", "\"open")],
        &[("idempotency-key", "\"a\" b")],
        &[("idempotency-key", "\"a\""), ("idempotency-key", "\"a\"")],
    ];
    for headers in requests {
        let reply = api.send(post_to("/plain", headers, "{}")).await;
        assert_eq!(reply.status, 400, "{headers:?}");
        assert_eq!(problem(&reply)["type"], "https://example.com/keys");
    }
    let reply = api.send(post_to("/plain", &[("idempotency-key", &"k".repeat(256))], "{}")).await;
    assert_eq!(reply.status, 400);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 0, "no handler has run");
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);
    db.clean_up().await;
}

#[tokio::test]
async fn request_without_scope_gets_401() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let mut request = keyed("/plain", "{}");
    request.headers_mut().remove("x-user");
    let reply = api.send(request).await;
    assert_eq!(reply.status, 401);
    assert_eq!(problem(&reply)["type"], "about:blank");
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 0);
    db.clean_up().await;
}

/// The path is the client's mistake, and has nothing to do with its authentication.
#[tokio::test]
async fn request_with_an_invalid_scope_gets_400() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let reply = api.send(keyed(&format!("/status/{}", "2".repeat(600)), "{}")).await;
    assert_eq!(reply.status, 400);
    let problem = problem(&reply);
    assert!(problem["detail"].as_str().unwrap().contains("the path has 608 bytes"), "{problem}");
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 0);
    db.clean_up().await;
}

#[tokio::test]
async fn body_over_the_limit_gets_413() {
    let db = Database::new().await;
    let api = Api::with(&db, |layer| layer.body_limit(10)).await;
    let too_large = api.send(keyed("/plain", "12345678901")).await;
    assert_eq!(too_large.status, 413);
    assert!(problem(&too_large)["detail"].as_str().unwrap().contains("10 bytes"));
    // Without a known length.
    let streamed = post_to("/plain", &[("idempotency-key", "k")], Body::new(Streamed::new("12345678901")));
    assert_eq!(api.send(streamed).await.status, 413);
    // An outer layer wraps the body in its own limit.
    let limited = Body::new(Limited::new(Full::new(Bytes::from("1234567890")), 5));
    let reply = api.send(post_to("/plain", &[("idempotency-key", "k")], limited)).await;
    assert_eq!(reply.status, 413);
    problem(&reply);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 0);
    assert_eq!(api.send(keyed("/plain", "1234567890")).await.status, 201);
    db.clean_up().await;
}

#[tokio::test]
async fn second_request_gets_409_while_the_first_is_in_progress() {
    let db = Database::new().await;
    let api = Arc::new(Api::new(&db).await);
    let first = tokio::spawn({
        let api = Arc::clone(&api);
        async move { api.send(waiting("/finished", "{}")).await }
    });
    api.gate.reached().await;
    let busy = api.send(keyed("/finished", "{}")).await;
    assert_eq!((busy.status, busy.header("retry-after")), (409, Some("1")));
    problem(&busy);

    // A client waits as long as the request has taken so far, but not after the lock has expired.
    db.run("UPDATE {s}.idempotency_key SET locked_at = locked_at - interval '8 s'").await;
    let busy = api.send(keyed("/finished", "{}")).await;
    let seconds: u64 = busy.header("retry-after").unwrap().parse().unwrap();
    assert!((9..=30).contains(&seconds), "{seconds}");
    db.run("UPDATE {s}.idempotency_key SET locked_at = locked_at - interval '1 hour'").await;
    let busy = api.send(keyed("/finished", "{}")).await;
    let seconds: u64 = busy.header("retry-after").unwrap().parse().unwrap();
    assert!((20..=60).contains(&seconds), "{seconds}");

    api.gate.open();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!(api.outcomes(), ["Started", "InProgress", "InProgress", "InProgress"]);
    let again = api.send(keyed("/finished", "{}")).await;
    assert_eq!((again.status, again.is_replay(), again.body), (201, true, first.body));
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn key_of_another_request_gets_422() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    assert_eq!(api.send(keyed("/plain?a=1", r#"{"cents": 10}"#)).await.status, 201);
    for (path, body) in [
        ("/plain?a=1", r#"{"cents": 11}"#),
        ("/plain?a=1", "no JSON"),
        ("/plain?a=1", ""),
        ("/plain?a=2", r#"{"cents": 10}"#),
        ("/plain", r#"{"cents": 10}"#),
    ] {
        let reply = api.send(keyed(path, body)).await;
        assert_eq!(reply.status, 422, "{path} {body}");
        problem(&reply);
        assert_eq!(api.outcomes().pop().as_deref(), Some("Mismatched"));
    }
    assert!(api.send(keyed("/plain?a=1", r#" {"cents":10} "#)).await.is_replay(), "the same JSON");
    let unquoted = post_to("/plain?a=1", &[("idempotency-key", "k")], r#"{"cents": 10}"#);
    assert!(api.send(unquoted).await.is_replay(), "the same key");
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn unavailable_database_gets_503_without_the_handler() {
    let db = Database::new().await;
    let nowhere = "host=127.0.0.1 port=1 user=nobody connect_timeout=2".parse().unwrap();
    let nowhere = Pool::builder(Manager::new(nowhere, NoTls)).max_size(1).build().unwrap();
    let api = Api::with_pool(&db, nowhere, |layer| layer).await;
    let reply = api.send(keyed("/plain", "{}")).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    problem(&reply);
    assert_eq!(api.outcomes(), ["Unavailable"]);

    // The module's table does not exist.
    let elsewhere = Idempotency::in_schema("no_such_schema").unwrap();
    let api = Api::with(&db, |layer: IdempotencyLayer<Pool>| layer.idempotency(elsewhere)).await;
    assert_eq!(api.send(keyed("/plain", "{}")).await.status, 503);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 0);
    db.clean_up().await;
}

#[tokio::test]
async fn lock_time_of_the_layer_applies() {
    let db = Database::new().await;
    let hour = db.idempotency.clone().lock_for(Duration::from_secs(3600)).unwrap();
    let api = Arc::new(Api::with(&db, |layer| layer.idempotency(hour)).await);
    let request = tokio::spawn({
        let api = Arc::clone(&api);
        async move { api.send(waiting("/plain", "{}")).await }
    });
    api.gate.reached().await;
    let minutes =
        "SELECT (extract(epoch FROM locked_until - clock_timestamp()) / 60)::bigint FROM {s}.idempotency_key";
    assert!(db.number(minutes).await > 50);
    api.gate.open();
    assert_eq!(request.await.unwrap().status, 201);
    db.clean_up().await;
}
