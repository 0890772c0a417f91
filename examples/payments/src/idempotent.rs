//! An axum layer: each request needs the header `Idempotency-Key`, and a repeated request gets the stored response.
//!
//! The handler takes `Extension<Held>`, and finishes the guard in the transaction of its change.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use deadpool_postgres::Pool;
use pg_outbox::idempotency::{self, Begun, Fingerprint, Guard, Idempotency, Key, Scope};
use tokio::sync::Mutex;

/// Larger bodies are refused with 413.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The state of the layer.
#[derive(Clone)]
pub struct Idempotent {
    pub pool: Pool,
    pub idempotency: Idempotency,
}

/// The authenticated user, set by the authentication before this layer. Keys of two subjects never collide.
#[derive(Clone)]
pub struct Subject(pub String);

/// The guard of a started request. Only its handler locks it.
pub type Held = Arc<Mutex<Guard>>;

pub async fn idempotent(State(state): State<Idempotent>, request: Request, next: Next) -> Response {
    answer(&state, request, next).await.unwrap_or_else(|refused| refused)
}

#[allow(clippy::result_large_err)] // both variants are responses
async fn answer(state: &Idempotent, request: Request, next: Next) -> Result<Response, Response> {
    let (parts, body) = request.into_parts();
    let Some(subject) = parts.extensions.get::<Subject>() else {
        return Err(refuse(StatusCode::UNAUTHORIZED, "authentication is required"));
    };
    let Some(key) = parts.headers.get("idempotency-key") else {
        return Err(refuse(StatusCode::BAD_REQUEST, "the header Idempotency-Key is required"));
    };
    let bad = |error: &dyn std::fmt::Display| refuse(StatusCode::BAD_REQUEST, &error.to_string());
    let scope =
        Scope::new(parts.method.as_str(), parts.uri.path(), &subject.0).map_err(|error| bad(&error))?;
    let key = Key::from_header(key.as_bytes()).map_err(|error| bad(&error))?;
    let body = to_bytes(body, BODY_BYTES_MAX)
        .await
        .map_err(|_| refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"))?;
    let fingerprint = Fingerprint::json(&body).map_err(|error| bad(&error))?;
    // The body is kept for the completer, which has no other input.
    let asked = idempotency::Request::new(scope, key, fingerprint)
        .keep_body(body.to_vec())
        .map_err(|error| bad(&error))?;

    let client = state.pool.get().await.map_err(|_| unavailable())?;
    let begun = state.idempotency.begin(&client, &asked).await.map_err(|_| unavailable())?;
    drop(client); // the handler takes its own
    match begun {
        Begun::Replay(stored) => Ok(replay(&stored)),
        Begun::InProgress { .. } => {
            Err((StatusCode::CONFLICT, [("retry-after", "1")], "the same request is in progress")
                .into_response())
        }
        Begun::Mismatch => {
            Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, "the key was used for another request"))
        }
        Begun::Started(guard) => {
            let request = Request::from_parts(parts, Body::from(body));
            // A separate task, so that a client that disconnects does not stop the work halfway.
            let work = tokio::spawn(work(state.pool.clone(), guard, request, next));
            work.await.map_err(|_| unavailable())
        }
    }
}

/// Runs the handler. If it fails temporarily, releases the key, so that a retry can begin immediately.
async fn work(pool: Pool, guard: Guard, mut request: Request, next: Next) -> Response {
    let held: Held = Arc::new(Mutex::new(guard));
    request.extensions_mut().insert(Arc::clone(&held));
    let response = next.run(request).await;
    // Nothing was stored. If this fails too, the lock expires.
    if response.status().is_server_error()
        && let Some(guard) = Arc::into_inner(held)
        && let Ok(client) = pool.get().await
    {
        let _ = guard.into_inner().release(&client).await;
    }
    response
}

/// The stored response, for the first answer and for each repeated request.
pub fn respond(stored: &idempotency::Response) -> Response {
    let status = StatusCode::from_u16(stored.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, stored.bytes().to_vec()).into_response();
    for (name, value) in stored.headers() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn replay(stored: &idempotency::Response) -> Response {
    let mut response = respond(stored);
    response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}

fn refuse(status: StatusCode, why: &str) -> Response {
    (status, why.to_owned()).into_response()
}

fn unavailable() -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, "try again later")
}
