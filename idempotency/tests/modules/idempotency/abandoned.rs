//! Abandoned requests and their completers, and the reaper of old requests.

use std::time::Duration;

use pg_idempotency::idempotency::{Begun, Response};

use super::{finish, request};
use crate::database::{Database, connect};

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
