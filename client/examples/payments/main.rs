//! An API whose payments can be sent again: a retry is answered with what the first attempt has stored.
//!
//! outbox-relay migrate --config config.toml --with idempotency
//! DATABASE_URL=postgres://shop@localhost/shop cargo run -p pg-outbox --features idempotency,deadpool-postgres --example payments
//! curl -i localhost:8080/payments -H 'Idempotency-Key: 1' -H 'X-User: ada' -d '{"cents": 1200}'

mod idempotent;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use deadpool_postgres::{Manager, Pool};
use idempotent::{Idempotent, Subject, idempotent, respond};
use pg_outbox::idempotency::{self, Guard, Idempotency};
use pg_outbox::{Event, Outbox};
use tokio_postgres::NoTls;

/// Its own table; a real shop has a migration for it.
const CREATE_PAYMENTS: &str = "
    CREATE TABLE IF NOT EXISTS payment (
        id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        cents bigint NOT NULL CHECK (cents > 0)
    )";

#[derive(serde::Deserialize)]
struct Payment {
    cents: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url =
        std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL, e.g. postgres://localhost/shop")?;
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls)).max_size(8).build()?;
    pool.get().await?.batch_execute(CREATE_PAYMENTS).await?;
    let state = Idempotent { pool: pool.clone(), idempotency: Idempotency::default() };
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(from_fn_with_state(state, idempotent))
        .layer(from_fn(authenticate))
        .with_state(pool);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    axum::serve(listener, app).await?;
    Ok(())
}

/// Stands for real authentication.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = request.headers().get("x-user").and_then(|user| user.to_str().ok()).map(str::to_owned);
    if let Some(user) = user {
        request.extensions_mut().insert(Subject(user));
    }
    next.run(request).await
}

async fn pay(
    State(pool): State<Pool>,
    Extension(guard): Extension<Arc<Guard>>,
    body: axum::body::Bytes,
) -> Result<Response, StatusCode> {
    let stored = store(&pool, &guard, &body).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(respond(&stored))
}

/// The payment, its event and the response: all in one transaction.
async fn store(
    pool: &Pool,
    guard: &Guard,
    body: &[u8],
) -> Result<idempotency::Response, Box<dyn std::error::Error>> {
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    let response = match serde_json::from_slice::<Payment>(body) {
        Ok(payment) if payment.cents > 0 => {
            let sql = "INSERT INTO payment (cents) VALUES ($1) RETURNING id";
            let id: i64 = tx.query_one(sql, &[&payment.cents]).await?.get(0);
            let event = Event::new("payment", id, "PaymentMade")
                .json(&serde_json::json!({ "cents": payment.cents }))?;
            Outbox::default().enqueue(&tx, event).await?;
            idempotency::Response::new(201).header("location", format!("/payments/{id}"))
        }
        // A client's mistake is an answer too, and the same one each time.
        _ => idempotency::Response::new(400).body("a payment has a number of cents above 0"),
    };
    guard.finish(&tx, &response).await?;
    tx.commit().await?;
    Ok(response)
}
