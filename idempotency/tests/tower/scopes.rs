//! Scopes, and requests that the layer passes to the handler.

use std::time::Duration;

use axum::http::Method;

use crate::api::{Api, keyed, post_to};
use crate::database::Database;

#[tokio::test]
async fn subjects_methods_and_routes_do_not_share_keys() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let ada = || keyed("/plain", "{}");
    let mut grace = ada();
    grace.headers_mut().insert("x-user", "grace".parse().unwrap());
    let mut put = ada();
    *put.method_mut() = Method::PUT;
    for request in [ada(), grace, put, keyed("/finished", "{}")] {
        let reply = api.send(request).await;
        assert_eq!((reply.status, reply.is_replay()), (201, false));
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 4);
    assert!(api.send(ada()).await.is_replay());
    db.clean_up().await;
}

/// One scope for all routes, as in an API whose keys are unique for each user.
#[tokio::test]
async fn key_of_another_resource_gets_422_in_a_shared_scope() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let send = async |path| {
        let headers = [("idempotency-key", "k"), ("route", "everything")];
        api.send(post_to(path, &headers, "")).await
    };
    assert_eq!(send("/status/200").await.status, 200);
    for path in ["/status/201", "/plain", "/finished"] {
        assert_eq!(send(path).await.status, 422, "{path}");
    }
    assert!(send("/status/200").await.is_replay());
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn optional_key_can_be_missing_but_not_malformed() {
    let db = Database::new().await;
    let api = Api::with(&db, |layer| layer.optional().body_limit(10)).await;
    for _ in 0..2 {
        let mut without = post_to("/optional", &[], "12345678901");
        without.headers_mut().remove("x-user");
        let reply = api.send(without).await;
        assert_eq!((reply.status, reply.text(), reply.is_replay()), (200, "false", false));
    }
    assert_eq!(api.outcomes(), [""; 0]);
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);

    assert_eq!(api.send(post_to("/optional", &[("idempotency-key", "\"open")], "{}")).await.status, 400);
    for is_replay in [false, true] {
        let reply = api.send(keyed("/optional", "{}")).await;
        assert_eq!((reply.status, reply.text(), reply.is_replay()), (200, "true", is_replay));
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 3);
    db.clean_up().await;
}

#[tokio::test]
async fn safe_methods_skip_the_layer() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    for key in [None, Some("k"), Some("k")] {
        let headers: Vec<_> = key.into_iter().map(|key| ("idempotency-key", key)).collect();
        let mut get = post_to("/optional", &headers, "");
        *get.method_mut() = Method::GET;
        let reply = api.send(get).await;
        assert_eq!((reply.status, reply.text(), reply.is_replay()), (200, "false", false));
    }
    db.clean_up().await;
}

#[tokio::test]
async fn body_is_kept_until_the_request_is_finished() {
    let db = Database::new().await;
    let api = Api::with(&db, |layer| layer.keep_body().body_limit(usize::MAX)).await;
    let panics = post_to("/panic", &[("idempotency-key", "k"), ("wait", "")], r#"{"cents": 10}"#);
    assert_eq!(api.send(panics).await.status, 500);
    db.run("UPDATE {s}.idempotency_key SET locked_until = clock_timestamp()").await;
    let abandoned = db.idempotency.abandoned(&db.client, Duration::ZERO, 10).await.unwrap();
    let [guard] = &abandoned[..] else { panic!("{abandoned:?}") };
    assert_eq!(guard.request(), Some(br#"{"cents": 10}"#.as_slice()));

    let too_large = post_to("/plain", &[("idempotency-key", "k")], "x".repeat(1024 * 1024 + 1));
    assert_eq!(api.send(too_large).await.status, 413, "it could not be kept");
    db.clean_up().await;
}
