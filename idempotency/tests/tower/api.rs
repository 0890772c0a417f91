//! An axum API with the layer, whose handlers do what the headers of a request say.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Extension, Router};
use deadpool_postgres::Pool;
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use pg_idempotency::InvalidText;
use pg_idempotency::idempotency::{self, Scope};
use pg_idempotency::tower::{Connections, DoNotStore, Held, IdempotencyLayer, Outcome};
use tokio::sync::{Semaphore, oneshot};
use tower_service::Service;

use crate::database::{Database, pool};

/// Not UTF-8, with a zero.
pub const BYTES: &[u8] = &[b'a', 0, 0xff, b'\n'];

/// An API and its database.
#[derive(Clone)]
pub struct Api {
    pub router: Router,
    pub gate: Gate,
    outcomes: Arc<Mutex<Vec<String>>>,
}

/// Handlers of requests with the header `wait` stop here.
#[derive(Clone)]
pub struct Gate {
    entered: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    /// Waits until a handler is at the gate.
    pub async fn reached(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    /// Lets one handler continue.
    pub fn open(&self) {
        self.open.add_permits(1);
    }

    async fn pass(&self, headers: &HeaderMap) {
        if headers.contains_key("wait") {
            self.entered.add_permits(1);
            self.open.acquire().await.unwrap().forget();
        }
    }
}

#[derive(Clone)]
struct App {
    pool: Pool,
    gate: Gate,
    /// Records an effect, whose text is its parameter.
    effect: String,
}

impl App {
    /// A change that is committed with the response.
    async fn finish(
        &self,
        headers: &HeaderMap,
        held: &Held,
        response: &idempotency::Response,
        by: &str,
    ) -> Result<(), Box<dyn Error>> {
        let mut client = self.pool.get().await?;
        let tx = client.transaction().await?;
        tx.execute(&self.effect, &[&by]).await?;
        held.lock().await.finish(&tx, response).await?;
        if headers.contains_key("fail") {
            return Err("the commit fails".into());
        }
        Ok(tx.commit().await?)
    }

    /// A change without the response.
    async fn change(&self, by: &str) {
        let client = self.pool.get().await.unwrap();
        client.execute(&self.effect, &[&by]).await.unwrap();
    }
}

impl Api {
    pub async fn new(db: &Database) -> Api {
        Api::with(db, |layer| layer).await
    }

    /// With a changed layer.
    pub async fn with(
        db: &Database,
        change: impl FnOnce(IdempotencyLayer<Pool>) -> IdempotencyLayer<Pool>,
    ) -> Api {
        Api::with_pool(db, pool(8), change).await
    }

    /// With another pool for the layer.
    pub async fn with_pool<C: Connections>(
        db: &Database,
        connections: C,
        change: impl FnOnce(IdempotencyLayer<C>) -> IdempotencyLayer<C>,
    ) -> Api {
        db.run("CREATE TABLE IF NOT EXISTS {s}.effect (by text)").await;
        let gate = Gate { entered: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) };
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let observed = Arc::clone(&outcomes);
        let layer = IdempotencyLayer::new(connections, scope)
            .idempotency(db.idempotency.clone())
            .observer(move |_, outcome| observed.lock().unwrap().push(name(outcome)));
        let effect = db.sql("INSERT INTO {s}.effect VALUES ($1)");
        let router = Router::new()
            .route("/finished", any(finished))
            .route("/left-open", post(left_open))
            .route("/plain", any(plain))
            .route("/status/{status}", post(status))
            .route("/panic", post(panicking))
            .route("/optional", any(optional))
            .layer(change(layer))
            .with_state(App { pool: pool(8), gate: gate.clone(), effect });
        Api { router, gate, outcomes }
    }

    pub async fn send(&self, request: Request<Body>) -> Reply {
        // The readiness of a router needs no poll.
        let response = self.router.clone().call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// The outcomes since the last call.
    pub fn outcomes(&self) -> Vec<String> {
        std::mem::take(&mut self.outcomes.lock().unwrap())
    }
}

pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A POST of Ada.
pub fn post_to(path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header("x-user", "ada");
    headers
        .iter()
        .fold(request, |request, (name, value)| request.header(*name, *value))
        .body(body.into())
        .unwrap()
}

/// A POST of Ada with the key `k`.
pub fn keyed(path: &str, body: &str) -> Request<Body> {
    post_to(path, &[("idempotency-key", "\"k\"")], body.to_owned())
}

/// The same, whose handler stops at the gate.
pub fn waiting(path: &str, body: &str) -> Request<Body> {
    post_to(path, &[("idempotency-key", "\"k\""), ("wait", "")], body.to_owned())
}

/// A body without a known size.
pub struct Streamed(Full<Bytes>);

impl Streamed {
    pub fn new(body: impl Into<Bytes>) -> Streamed {
        Streamed(Full::new(body.into()))
    }
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }
}

/// A body of a known size that fails.
struct Broken;

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(Some(Err("the body breaks")))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(8)
    }
}

fn scope(request: &Parts) -> Option<Result<Scope, InvalidText>> {
    let user = request.headers.get("x-user")?.to_str().unwrap();
    let route = request.headers.get("route").map_or(request.uri.path(), |route| route.to_str().unwrap());
    Some(Scope::new(request.method.as_str(), route, user))
}

fn name(outcome: Outcome<'_>) -> String {
    match outcome {
        Outcome::InProgress(_) => "InProgress".to_owned(),
        Outcome::Unavailable(_) => "Unavailable".to_owned(),
        Outcome::NotStored(error) => format!("NotStored: {error}"),
        other => format!("{other:?}"),
    }
}

async fn finished(
    State(app): State<App>,
    Extension(held): Extension<Held>,
    headers: HeaderMap,
    body: String,
) -> Response {
    app.gate.pass(&headers).await;
    let by = if headers.contains_key("wait") { "waited" } else { "direct" };
    let body = [BYTES, by.as_bytes(), body.as_bytes()].concat();
    let response = idempotency::Response::new(201).header("location", "/7").body(body);
    match app.finish(&headers, &held, &response, by).await {
        _ if headers.contains_key("decline") => StatusCode::PAYMENT_REQUIRED.into_response(),
        Ok(()) => response.into(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Returns 503 while the transaction that finished the guard is open. It is rolled back when the gate opens.
async fn left_open(State(app): State<App>, Extension(held): Extension<Held>) -> StatusCode {
    let (finished, is_finished) = oneshot::channel();
    tokio::spawn(async move {
        let mut client = app.pool.get().await.unwrap();
        let tx = client.transaction().await.unwrap();
        held.lock().await.finish(&tx, &idempotency::Response::new(201)).await.unwrap();
        finished.send(()).unwrap();
        app.gate.open.acquire().await.unwrap().forget();
        tx.rollback().await.unwrap();
    });
    is_finished.await.unwrap();
    StatusCode::SERVICE_UNAVAILABLE
}

async fn plain(State(app): State<App>, headers: HeaderMap, body: String) -> impl IntoResponse {
    app.gate.pass(&headers).await;
    let by = if headers.contains_key("wait") { "waited" } else { "direct" };
    app.change(by).await;
    let headers = [("location", "/7"), ("x-list", "1"), ("x-list", "2"), ("set-cookie", "session=secret")];
    (StatusCode::CREATED, AppendHeaders(headers), [BYTES, by.as_bytes(), body.as_bytes()].concat())
}

async fn status(State(app): State<App>, Path(status): Path<u16>, headers: HeaderMap) -> Response {
    app.change("status").await;
    let status = StatusCode::from_u16(status).unwrap();
    if headers.contains_key("mark") {
        return (status, Extension(DoNotStore)).into_response();
    }
    if headers.contains_key("large") {
        return (status, vec![b'x'; idempotency::BODY_BYTES_MAX + 1]).into_response();
    }
    if headers.contains_key("streamed") {
        return (status, Body::new(Streamed::new("streamed"))).into_response();
    }
    if headers.contains_key("long-header") {
        return (status, [("x-long", "x".repeat(idempotency::HEADER_BYTES_MAX))]).into_response();
    }
    if headers.contains_key("broken") {
        return (status, Body::new(Broken)).into_response();
    }
    status.into_response()
}

async fn panicking(State(app): State<App>, headers: HeaderMap) -> StatusCode {
    if headers.contains_key("wait") {
        panic!("the handler panics on purpose");
    }
    app.change("survived").await;
    StatusCode::OK
}

/// Returns whether the request has a guard.
async fn optional(State(app): State<App>, held: Option<Extension<Held>>) -> String {
    app.change("optional").await;
    held.is_some().to_string()
}
