//! The API: POST /payments, with an idempotency key. The handler gets the guard of its request from the layer, and finishes it
//! in the transaction of its change.

use std::time::Duration;

use anyhow::Context;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use pg_idempotency::InvalidText;
use pg_idempotency::idempotency::{Idempotency, Scope};
use pg_idempotency::tower::{Held, IdempotencyLayer};
use tokio::net::TcpListener;

use crate::completer;
use crate::pay::Shop;

/// Larger bodies are refused with 413.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The authenticated user.
#[derive(Clone)]
struct Subject(String);

/// Serves until the process ends, and completes abandoned requests.
pub async fn serve(listen: &str, shop: Shop, lock_for: Duration) -> anyhow::Result<()> {
    let idempotency = Idempotency::default().lock_for(lock_for)?;
    tokio::spawn(completer::run(shop.clone(), idempotency.clone(), lock_for));
    // The body is kept for the completer, which has no other input.
    let idempotent = IdempotencyLayer::new(shop.pool.clone(), scope)
        .idempotency(idempotency)
        .body_limit(BODY_BYTES_MAX)
        .keep_body();
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(idempotent)
        .layer(from_fn(authenticate))
        .with_state(shop);
    let listener = TcpListener::bind(listen).await.with_context(|| format!("the API at {listen}"))?;
    axum::serve(listener, app).await?;
    Ok(())
}

/// Keys of two users never collide.
fn scope(request: &Parts) -> Option<Result<Scope, InvalidText>> {
    let Subject(user) = request.extensions.get()?;
    Some(Scope::new(request.method.as_str(), request.uri.path(), user))
}

/// A stand-in for real authentication.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = request.headers().get("x-user").and_then(|user| user.to_str().ok()).map(str::to_owned);
    if let Some(user) = user {
        request.extensions_mut().insert(Subject(user));
    }
    next.run(request).await
}

async fn pay(State(shop): State<Shop>, Extension(held): Extension<Held>, body: Bytes) -> Response {
    let mut guard = held.lock().await;
    match shop.pay(&mut guard, &body, "request").await {
        Ok(stored) => stored.into(),
        Err(unfinished) => {
            eprintln!(
                "payment {} is not finished: {:#}",
                guard.key().as_str(),
                anyhow::Error::new(unfinished)
            );
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}
