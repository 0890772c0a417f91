//! A service without axum.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use pg_idempotency::idempotency::Scope;
use pg_idempotency::tower::{Held, IdempotencyLayer};
use tower_layer::Layer;
use tower_service::Service;

use crate::database::{Database, pool};

type Request = http::Request<Full<Bytes>>;
type Response = http::Response<Full<Bytes>>;

/// Fails once, then answers with the number of its calls.
struct Counter {
    calls: Arc<AtomicU32>,
    is_ready: bool,
}

/// As with many services, a clone is not ready.
impl Clone for Counter {
    fn clone(&self) -> Counter {
        Counter { calls: Arc::clone(&self.calls), is_ready: false }
    }
}

impl Service<Request> for Counter {
    type Response = Response;
    type Error = &'static str;
    type Future = Ready<Result<Response, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "call without poll_ready");
        assert!(request.extensions().get::<Held>().is_some() || request.method() == http::Method::GET);
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => ready(Err("the service failed")),
            calls => ready(Ok(http::Response::new(Full::from(calls.to_string())))),
        }
    }
}

#[tokio::test]
async fn error_of_a_service_releases_the_key_and_its_response_is_stored() {
    let db = Database::new().await;
    let layer = IdempotencyLayer::new(pool(2), |_| Some(Scope::new("POST", "/", "ada")))
        .idempotency(db.idempotency.clone());
    let mut service = layer.layer(Counter { calls: Arc::default(), is_ready: false });
    let mut send = async |method: &str| {
        std::future::poll_fn(|context| service.poll_ready(context)).await?;
        let request = http::Request::builder().method(method).uri("/").header("idempotency-key", "\"k\"");
        let response = service.call(request.body(Full::from("[1]")).unwrap()).await?;
        Ok(response.into_body().collect().await.unwrap().to_bytes())
    };
    assert_eq!(send("POST").await, Err("the service failed"));
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);
    assert_eq!(send("POST").await.unwrap(), "1");
    assert_eq!(send("POST").await.unwrap(), "1", "replayed");
    assert_eq!(send("GET").await.unwrap(), "2");
    db.clean_up().await;
}
