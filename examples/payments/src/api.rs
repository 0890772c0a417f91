//! The API: POST /payments, with an idempotency key.

use std::time::Duration;

use anyhow::Context;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use pg_outbox::idempotency::Idempotency;
use tokio::net::TcpListener;

use crate::completer;
use crate::idempotent::{Held, Idempotent, Subject, idempotent, respond};
use crate::pay::Shop;

/// Serves until the process ends, and completes abandoned requests.
pub async fn serve(listen: &str, shop: Shop, lock_for: Duration) -> anyhow::Result<()> {
    let idempotency = Idempotency::default().lock_for(lock_for)?;
    tokio::spawn(completer::run(shop.clone(), idempotency.clone(), lock_for));
    let state = Idempotent { pool: shop.pool.clone(), idempotency };
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(from_fn_with_state(state, idempotent))
        .layer(from_fn(authenticate))
        .with_state(shop);
    let listener = TcpListener::bind(listen).await.with_context(|| format!("the API at {listen}"))?;
    axum::serve(listener, app).await?;
    Ok(())
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
        Ok(stored) => respond(&stored),
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
