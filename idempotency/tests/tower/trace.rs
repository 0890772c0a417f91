//! The trace of a request in the task of its handler.

use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use http_body_util::Full;
use opentelemetry::Context;
use opentelemetry::context::FutureExt;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use pg_idempotency::idempotency::Scope;
use pg_idempotency::tower::IdempotencyLayer;
use tower_layer::Layer;
use tower_service::Service;

use crate::database::{Database, pool};

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Option<TraceId>>>);

impl Service<http::Request<Full<Bytes>>> for Recorder {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Full<Bytes>>) -> Self::Future {
        let seen = Arc::clone(&self.0);
        Box::pin(async move {
            *seen.lock().unwrap() = Some(Context::current().span().span_context().trace_id());
            Ok(http::Response::new(Body::empty()))
        })
    }
}

#[tokio::test]
async fn handler_runs_in_the_trace_of_the_request() {
    let db = Database::new().await;
    let recorder = Recorder::default();
    let layer = IdempotencyLayer::new(pool(1), |_| Some(Scope::new("POST", "/", "ada")))
        .idempotency(db.idempotency.clone());
    let mut service = layer.layer(recorder.clone());
    let (trace, span) = (TraceId::from(7_u128), SpanId::from(8_u64));
    let remote = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
    let request = http::Request::post("/").header("idempotency-key", "k").body(Full::default()).unwrap();
    let context = Context::new().with_remote_span_context(remote);
    service.call(request).with_context(context).await.unwrap();
    assert_eq!(*recorder.0.lock().unwrap(), Some(trace));
    db.clean_up().await;
}
