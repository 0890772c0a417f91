//! Tests of the axum layer over HTTP.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

#[allow(dead_code)] // the tests of the modules use the rest of it
#[path = "../../../../client/tests/modules/database.rs"]
mod database;
#[path = "../../src/idempotent.rs"]
mod idempotent;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use deadpool_postgres::Pool;
use pg_outbox::idempotency;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::database::{Database, pool};
use crate::idempotent::{Held, Idempotent, Subject, idempotent, respond};

#[derive(Clone)]
struct App {
    pool: Pool,
    /// Lets one handler at a time continue.
    gate: Arc<Semaphore>,
}

/// Fails if the body says so. Otherwise answers with the request.
async fn handle(
    State(app): State<App>,
    Extension(held): Extension<Held>,
    body: String,
) -> Result<Response, StatusCode> {
    app.gate.acquire().await.unwrap().forget();
    if body.contains("fail") {
        return Err(StatusCode::BAD_GATEWAY);
    }
    let mut client = app.pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let response = idempotency::Response::new(201).header("location", "/7").body(body);
    held.lock().await.finish(&tx, &response).await.unwrap();
    tx.commit().await.unwrap();
    Ok(respond(&response))
}

async fn serve(db: &Database) -> (String, Arc<Semaphore>) {
    let (pool, gate) = (pool(4), Arc::new(Semaphore::new(0)));
    let state = Idempotent { pool: pool.clone(), idempotency: db.idempotency.clone() };
    let app = Router::new()
        .route("/payments", post(handle))
        .layer(from_fn_with_state(state, idempotent))
        .layer(from_fn(async |mut request: Request, next: Next| {
            request.extensions_mut().insert(Subject("ada".to_owned()));
            next.run(request).await
        }))
        .with_state(App { pool, gate: Arc::clone(&gate) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async { axum::serve(listener, app).await.unwrap() });
    (address, gate)
}

async fn send(address: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "POST /payments HTTP/1.1\r\nhost: api\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn layer_answers_each_outcome_with_its_http_status() {
    let db = Database::new().await;
    let (address, gate) = serve(&db).await;
    let key = "idempotency-key: \"k-1\"\r\n";
    let body = r#"{"cents": 10}"#;
    assert_eq!(status(&send(&address, "", body).await), "400", "no key");
    assert_eq!(status(&send(&address, "idempotency-key: \"\"\r\n", body).await), "400", "an empty key");
    assert_eq!(status(&send(&address, key, "no JSON").await), "400");
    assert_eq!(status(&send(&address, key, &"1".repeat(70_000)).await), "413");

    // A temporary failure is not stored, and the next attempt begins immediately.
    gate.add_permits(1);
    assert_eq!(status(&send(&address, key, r#"{"fail": 1}"#).await), "502");

    let first = tokio::spawn({
        let address = address.clone();
        async move { send(&address, key, body).await }
    });
    db.until("the first one is at it", "SELECT count(*) = 1 FROM {s}.idempotency_key").await;
    let busy = send(&address, key, body).await;
    assert_eq!(status(&busy), "409");
    assert!(busy.contains("retry-after: 1\r\n"), "{busy}");
    gate.add_permits(1);
    let first = first.await.unwrap();
    assert_eq!(status(&first), "201", "{first}");
    assert!(!first.contains("idempotent-replayed"), "{first}");

    let replay = send(&address, "idempotency-key: k-1\r\n", r#" {"cents":10} "#).await;
    for part in ["HTTP/1.1 201", "location: /7\r\n", "idempotent-replayed: true\r\n", body] {
        assert!(replay.contains(part), "{part}: {replay}");
    }
    assert_eq!(status(&send(&address, key, r#"{"cents": 11}"#).await), "422");
    db.clean_up().await;
}
