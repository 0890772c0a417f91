//! Clients that disconnect, handlers that panic or are too slow, and dead processes.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::api::{Api, Reply, keyed, post_to, waiting};
use crate::database::{Database, pool};

const EXPIRE: &str = "UPDATE {s}.idempotency_key SET locked_until = clock_timestamp()";

#[tokio::test]
async fn handler_continues_after_its_client_has_disconnected() {
    for path in ["/finished", "/plain"] {
        let db = Database::new().await;
        let api = Api::new(&db).await;
        tokio::select! {
            _ = api.send(waiting(path, "{}")) => panic!("the handler waits"),
            () = api.gate.reached() => {}
        }
        // Now the future of the request is dropped.
        assert_eq!(api.send(keyed(path, "{}")).await.status, 409, "{path}");
        api.gate.open();
        db.until("the response is stored", "SELECT count(status) = 1 FROM {s}.idempotency_key").await;
        let again = api.send(keyed(path, "{}")).await;
        assert_eq!((again.status, again.is_replay()), (201, true), "{path}");
        assert!(String::from_utf8_lossy(&again.body).ends_with("waited{}"), "{path}");
        assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1, "{path}");
        db.clean_up().await;
    }
}

#[tokio::test]
async fn request_that_is_dropped_while_it_waits_for_a_connection_has_no_effect() {
    let db = Database::new().await;
    let pool = pool(1);
    let api = Api::with_pool(&db, pool.clone(), |layer| layer).await;
    let taken = pool.get().await.unwrap();
    tokio::select! {
        _ = api.send(keyed("/plain", "{}")) => panic!("the pool is empty"),
        () = async {
            while pool.status().waiting == 0 {
                yield_now().await;
            }
        } => {}
    }
    drop(taken);
    // A remainder of the dropped request would get the connection first.
    assert_eq!(api.send(post_to("/plain", &[("idempotency-key", "later")], "{}")).await.status, 201);
    assert_eq!(api.outcomes(), ["Started"]);
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}

/// The key is released when the transaction ends, by a connection that is usable afterwards.
#[tokio::test]
async fn open_transaction_of_a_handler_does_not_delay_its_response() {
    let db = Database::new().await;
    let api = Api::with_pool(&db, pool(1), |layer| layer).await;
    let reply = timeout(Duration::from_secs(5), api.send(keyed("/left-open", "{}"))).await;
    assert_eq!(reply.expect("the response arrives in time").status, 503);
    assert_eq!(api.outcomes(), ["Started"]);
    api.gate.open();
    db.until("the key is released", "SELECT count(*) = 0 FROM {s}.idempotency_key").await;
    assert_eq!(api.send(keyed("/plain", "{}")).await.status, 201);
    assert!(api.send(keyed("/plain", "{}")).await.is_replay());
    db.clean_up().await;
}

#[tokio::test]
async fn panic_gets_500_and_the_key_stays_locked() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let panics = post_to("/panic", &[("idempotency-key", "k"), ("wait", "")], "{}");
    let reply = api.send(panics).await;
    assert_eq!(reply.status, 500);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(api.send(keyed("/panic", "{}")).await.status, 409, "its outcome is unknown");
    db.run(EXPIRE).await;
    assert_eq!(api.send(keyed("/panic", "{}")).await.status, 200);
    assert_eq!(api.outcomes(), ["Started", "InProgress", "TakenOver(2)"]);
    assert!(api.send(keyed("/panic", "{}")).await.is_replay());
    db.clean_up().await;
}

#[tokio::test]
async fn request_of_a_dead_process_is_taken_over_after_its_lock_has_expired() {
    let db = Database::new().await;
    let api = Api::new(&db).await;
    let dying = api.clone();
    let death = tokio::task::spawn_blocking(move || {
        // The end of a runtime drops the tasks of all handlers, as the end of a process does.
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            tokio::select! {
                _ = dying.send(waiting("/finished", "{}")) => panic!("the handler waits"),
                () = dying.gate.reached() => {}
            }
        });
    });
    death.await.unwrap();

    assert_eq!(api.send(keyed("/finished", "{}")).await.status, 409);
    db.run(EXPIRE).await;
    assert_eq!(api.send(keyed("/finished", "{}")).await.status, 201);
    assert_eq!(api.outcomes(), ["Started", "InProgress", "TakenOver(2)"]);
    assert!(api.send(keyed("/finished", "{}")).await.is_replay());
    db.clean_up().await;
}

/// Returns the answer to a request whose lock expires while its handler works, after another request has taken it over.
async fn overtaken(db: &Database, api: &Arc<Api>, path: &'static str) -> Reply {
    let slow = tokio::spawn({
        let api = Arc::clone(api);
        async move { api.send(waiting(path, "{}")).await }
    });
    api.gate.reached().await;
    db.run(EXPIRE).await;
    let second = api.send(keyed(path, "{}")).await;
    assert_eq!((second.status, second.is_replay()), (201, false));
    api.gate.open();
    slow.await.unwrap()
}

#[tokio::test]
async fn slow_handler_that_finishes_the_guard_has_no_effect_after_a_takeover() {
    let db = Database::new().await;
    let api = Arc::new(Api::new(&db).await);
    assert_eq!(overtaken(&db, &api, "/finished").await.status, 503);
    assert_eq!(api.outcomes(), ["Started", "TakenOver(2)"]);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect WHERE by = 'direct'").await, 1);
    let again = api.send(keyed("/finished", "{}")).await;
    assert!(again.is_replay() && String::from_utf8_lossy(&again.body).ends_with("direct{}"));
    db.clean_up().await;
}

/// The weaker guarantee: two effects, but every client gets the same response.
#[tokio::test]
async fn slow_handler_without_the_guard_gets_503_after_a_takeover() {
    let db = Database::new().await;
    let api = Arc::new(Api::new(&db).await);
    let slow = overtaken(&db, &api, "/plain").await;
    assert_eq!((slow.status, slow.header("retry-after")), (503, Some("1")));
    let [started, taken_over, not_stored] = &api.outcomes()[..] else { panic!("three outcomes") };
    assert_eq!((started.as_str(), taken_over.as_str()), ("Started", "TakenOver(2)"));
    assert!(not_stored.starts_with("NotStored: the lock on this idempotency key was lost"), "{not_stored}");
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 2);
    let again = api.send(keyed("/plain", "{}")).await;
    assert!(again.is_replay() && String::from_utf8_lossy(&again.body).ends_with("direct{}"));
    db.clean_up().await;
}

/// After a failed statement of the layer, the client still gets the handler's response.
#[tokio::test]
async fn response_reaches_the_client_if_the_database_fails_after_the_handler() {
    let db = Database::new().await;
    let api = Arc::new(Api::new(&db).await);
    let request = tokio::spawn({
        let api = Arc::clone(&api);
        async move { api.send(waiting("/plain", "{}")).await }
    });
    api.gate.reached().await;
    db.run("ALTER TABLE {s}.idempotency_key RENAME TO gone").await;
    api.gate.open();
    let reply = request.await.unwrap();
    assert_eq!(reply.status, 201);
    assert!(api.outcomes()[1].starts_with("NotStored: "));
    db.run("ALTER TABLE {s}.gone RENAME TO idempotency_key").await;
    assert_eq!(api.send(keyed("/plain", "{}")).await.status, 409, "the lock must expire");
    db.clean_up().await;
}
