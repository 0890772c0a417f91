//! The admin endpoint: a status page, metrics and health over HTTP, read-only.
//!
//! - `/`: the status page, for people.
//! - `/metrics`: OpenMetrics text.
//! - `/livez`: 200 while the cycle makes progress, even without Kafka or Postgres, because a restart would not help then.
//! - `/readyz`: 200 while the relay can publish, otherwise 503 and one line with the reason.
//!
//! Other websites must not read it (DNS rebinding): see [`host`].
//!
//! It runs on the relay's thread, so an answer also shows that the thread is not stuck. Requests are limited for the same
//! reason.

mod host;
pub mod metrics;
mod page;
mod serve;

pub use serve::{AdminError, Listening};

use crate::config::Config;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics::Metrics;
use page::Page;
use relay::fail_point;
use relay::health::stats::Stats;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The scout normally makes progress many times a second, but a statement may take 35 s when Postgres is overloaded.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The relay that the endpoint shows.
pub struct Observed {
    /// Its counters.
    pub stats: Arc<Stats>,
    /// Its configuration in force.
    pub config: watch::Receiver<Config>,
    /// The file of the configuration, for the commands that the status page names.
    pub config_file: Option<PathBuf>,
}

#[derive(Clone)]
struct AdminState {
    stats: Arc<Stats>,
    metrics: Arc<Metrics>,
    page: Arc<Page>,
}

fn router(stats: Arc<Stats>, page: Arc<Page>, listen: SocketAddr) -> Router {
    let metrics = Arc::new(Metrics::new(&stats));
    Router::new()
        .route("/", get(page::show))
        .route("/metrics", get(show_metrics))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .with_state(AdminState { stats, metrics, page })
        .layer(from_fn(move |request, next| protect(listen, request, next)))
}

/// On a loopback address, answers only requests by address or as `localhost`. Elsewhere, monitoring systems use other
/// names, and only the page is protected.
async fn protect(listen: SocketAddr, request: Request, next: Next) -> Response {
    let is_open = !listen.ip().is_loopback() && request.uri().path() != "/";
    let mut response = if is_open || host::is_trusted(request.uri(), request.headers()) {
        next.run(request).await
    } else {
        (StatusCode::MISDIRECTED_REQUEST, host::NOT_BY_NAME).into_response()
    };
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn show_metrics(State(shown): State<AdminState>) -> Response {
    match shown.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn live(State(shown): State<AdminState>) -> (StatusCode, String) {
    let since = shown.stats.since_beat();
    // A draining relay has no scout any more. shutdown_timeout bounds the drain.
    if shown.stats.is_stopping() || since < PROGRESS_WITHIN {
        return (StatusCode::OK, "live\n".to_owned());
    }
    let text = format!("the relay has not polled for work for {} s\n", since.as_secs());
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn ready(State(shown): State<AdminState>) -> (StatusCode, String) {
    fail_point::reach("answering-health").await;
    match shown.stats.not_ready() {
        None => (StatusCode::OK, format!("{}\n", shown.stats.ready())),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
