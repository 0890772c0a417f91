//! Which responses are stored, and what a repeated request gets.

use std::time::Duration;

use axum::http::HeaderName;
use pg_idempotency::idempotency::BODY_BYTES_MAX;
use pg_idempotency::tower::IdempotencyLayer;

use crate::api::{Api, BYTES, keyed, post_to};
use crate::database::Database;

#[tokio::test]
async fn response_is_replayed_byte_for_byte() {
    for path in ["/finished", "/plain"] {
        let db = Database::new().await;
        let api = Api::new(&db).await;
        let first = api.send(keyed(path, "{}")).await;
        assert_eq!((first.status, first.is_replay()), (201, false), "{path}");
        assert_eq!(first.body, [BYTES, b"direct{}"].concat(), "{path}");
        let again = api.send(keyed(path, "{}")).await;
        assert_eq!((again.status, again.is_replay()), (201, true), "{path}");
        assert_eq!(again.body, first.body, "{path}");
        assert_eq!(again.header("location"), Some("/7"), "{path}");
        assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1, "{path}");
        assert_eq!(api.outcomes(), ["Started", "Replayed"], "{path}");
        db.clean_up().await;
    }
}

#[tokio::test]
async fn headers_are_stored_without_cookies_and_those_of_the_connection() {
    let db = Database::new().await;
    let api = Api::with(&db, |layer| layer.replay_header(HeaderName::from_static("x-again"))).await;
    let first = api.send(keyed("/plain", "{}")).await;
    assert_eq!(first.headers.get_all("x-list").iter().count(), 2);
    assert!(first.header("set-cookie").is_some() && first.header("x-again").is_none());
    let again = api.send(keyed("/plain", "{}")).await;
    assert_eq!(again.header("x-list"), Some("1, 2"));
    assert_eq!(again.header("content-type"), first.header("content-type"));
    assert_eq!(again.header("set-cookie"), None);
    assert_eq!(again.header("x-again"), Some("true"));
    let stored =
        "SELECT count(*) FROM {s}.idempotency_key WHERE headers ?| ARRAY['set-cookie', 'content-length']";
    assert_eq!(db.number(stored).await, 0);
    db.clean_up().await;
}

#[tokio::test]
async fn transient_response_releases_the_key() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    for status in [408, 425, 429, 500, 503, 599] {
        let path = format!("/status/{status}");
        for _ in 0..2 {
            let reply = api.send(keyed(&path, "{}")).await;
            assert_eq!((reply.status, reply.is_replay()), (status, false));
        }
        assert_eq!(api.outcomes(), ["Started", "Started"], "{status}");
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 12);
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);
    db.clean_up().await;
}

#[tokio::test]
async fn failed_commit_after_finish_releases_the_key() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let fails = post_to("/finished", &[("idempotency-key", "k"), ("fail", "")], "{}");
    assert_eq!(api.send(fails).await.status, 503);
    assert_eq!(api.send(keyed("/finished", "{}")).await.status, 201);
    assert_eq!(api.outcomes(), ["Started", "Started"]);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn response_after_a_rollback_of_another_one_is_stored() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let declines = post_to("/finished", &[("idempotency-key", "k"), ("fail", ""), ("decline", "")], "{}");
    let first = api.send(declines).await;
    assert_eq!((first.status, first.is_replay()), (402, false));
    let again = api.send(keyed("/finished", "{}")).await;
    assert_eq!((again.status, again.is_replay()), (402, true));
    assert_eq!(api.outcomes(), ["Started", "Replayed"]);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 0);
    db.clean_up().await;
}

/// As if the answer to COMMIT was lost and the handler assumed that nothing was committed.
#[tokio::test]
async fn response_that_differs_from_the_committed_one_is_replaced_with_503() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let declines = post_to("/finished", &[("idempotency-key", "k"), ("decline", "")], "{}");
    let first = api.send(declines).await;
    assert_eq!((first.status, first.header("retry-after")), (503, Some("1")));
    let [started, not_stored] = &api.outcomes()[..] else { panic!("two outcomes") };
    assert_eq!(started, "Started");
    assert!(not_stored.starts_with("NotStored: the lock on this idempotency key was lost"), "{not_stored}");
    let again = api.send(keyed("/finished", "{}")).await;
    assert_eq!((again.status, again.is_replay()), (201, true));
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn final_response_is_stored_unless_its_cause_can_be_fixed() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    for status in [200, 204, 303, 400, 410, 422] {
        let path = format!("/status/{status}");
        assert!(!api.send(keyed(&path, "{}")).await.is_replay());
        let again = api.send(keyed(&path, "{}")).await;
        assert_eq!((again.status, again.is_replay()), (status, true));
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 6);
    // The cause can be fixed: a login, a privilege, or a missing row.
    for status in [401, 403, 404, 407, 409] {
        let path = format!("/status/{status}");
        for _ in 0..2 {
            let answer = api.send(keyed(&path, "{}")).await;
            assert_eq!((answer.status, answer.is_replay()), (status, false));
        }
    }
    db.clean_up().await;
}

#[tokio::test]
async fn excluded_response_releases_the_key() {
    let db = Database::new().await;
    let api = Api::with(&db, |layer| layer.store_if(|status, _| !status.is_client_error())).await;
    let marked = || post_to("/status/200", &[("idempotency-key", "k"), ("mark", "")], "{}");
    for _ in 0..2 {
        assert_eq!(api.send(keyed("/status/404", "{}")).await.status, 404);
        assert_eq!(api.send(marked()).await.status, 200);
    }
    assert_eq!(api.outcomes(), ["Started"; 4]);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 4);
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);
    // A released key can be used for another request.
    assert_eq!(api.send(keyed("/status/200", "[]")).await.status, 200);
    assert!(api.send(keyed("/status/200", "[]")).await.is_replay());
    db.clean_up().await;
}

/// A completer must not execute what the handler refused.
#[tokio::test]
async fn refused_request_is_not_abandoned_although_its_body_is_kept() {
    let db = Database::new().await;
    let api = Api::with(&db, IdempotencyLayer::keep_body).await;
    for status in [401, 403, 404, 407, 409] {
        assert_eq!(api.send(keyed(&format!("/status/{status}"), "{}")).await.status, status);
    }
    let marked = post_to("/status/200", &[("idempotency-key", "k"), ("mark", "")], "{}");
    assert_eq!(api.send(marked).await.status, 200);
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);

    // One that failed is still completed.
    assert_eq!(api.send(keyed("/status/503", "[7]")).await.status, 503);
    let guards = db.idempotency.abandoned(&db.client, Duration::ZERO, 10).await.unwrap();
    assert_eq!(guards.len(), 1);
    assert_eq!(guards[0].request(), Some(&b"[7]"[..]));
    db.clean_up().await;
}

/// The client gets it. A retry does not repeat its effect, neither before nor after the lock time.
#[tokio::test]
async fn response_that_cannot_be_stored_is_replaced_for_retries() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let size = "the size of the response is unknown or too large";
    let headers = "the headers have 16390 bytes, but the maximum is 16384";
    for (kind, first, error) in [
        ("large", (200, BODY_BYTES_MAX + 1), size),
        ("streamed", (200, 8), size),
        ("long-header", (200, 0), headers),
        ("broken", (410, 140), "the body breaks"),
    ] {
        let request = || post_to("/status/200", &[("idempotency-key", kind), (kind, "")], "{}");
        let reply = api.send(request()).await;
        assert_eq!((reply.status, reply.body.len()), first, "{kind}: {:?}", reply.body);
        assert_eq!(api.outcomes(), ["Started".to_owned(), format!("NotStored: {error}")], "{kind}");
        db.run("UPDATE {s}.idempotency_key SET locked_until = clock_timestamp()").await;
        let again = api.send(request()).await;
        assert_eq!((again.status, again.is_replay()), (410, true), "{kind}");
        assert_eq!(again.header("content-type"), Some("application/problem+json"), "{kind}");
        assert!(again.text().contains("its response with the status 200 was not stored"), "{}", again.text());
        assert_eq!(api.outcomes(), ["Replayed"], "{kind}");
        assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1, "{kind}");
        db.run("TRUNCATE {s}.effect").await;
    }
    db.clean_up().await;
}

/// Browsers and HTTP clients choose a new boundary for each attempt.
#[tokio::test]
async fn repeated_upload_is_replayed_although_its_boundary_differs() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let upload = |boundary: &str, text: &str| {
        let kind = format!("Multipart/form-data; charset=utf-8; Boundary=\"{boundary}\"");
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{text}\r\n--{boundary}--\r\n"
        );
        post_to("/plain", &[("idempotency-key", "k"), ("content-type", &kind)], body)
    };
    let first = api.send(upload("a1", "hello")).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    let again = api.send(upload("----b22", "hello")).await;
    assert_eq!((again.status, again.is_replay()), (201, true));
    assert_eq!(again.body, first.body);
    assert_eq!(api.send(upload("a1", "hullo")).await.status, 422);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}
