//! The admin endpoint: a status page, metrics and health over HTTP, read-only.
//!
//! - `/`: the status page, for people.
//! - `/metrics`: OpenMetrics text.
//! - `/livez`: 200 while the cycle makes progress, even without Kafka or Postgres, because a restart would not help then.
//! - `/readyz`: 200 while the relay can publish, otherwise 503 and one line with the reason.
//!
//! It runs on the relay's thread, so an answer also shows that the thread is not stuck. Requests are limited for the same
//! reason. Each client gets a connection at once, because probes decide whether the relay is restarted. When all connections
//! are in use, the oldest one without a complete request is closed. There is no limit for each address: probes on the same
//! host, or behind the same NAT, share theirs with other clients.
//!
//! A web page on the Internet may let its own name resolve to the address of this endpoint, to read the answers (DNS rebinding).
//! So only requests for an address or for `localhost` are answered, which no one else can own.

pub mod metrics;
mod page;

use crate::config::Config;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::Metrics;
use page::Page;
use relay::fail_point;
use relay::health::stats::Stats;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The scout normally makes progress many times a second, but a statement may take 35 s when Postgres is overloaded.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CONNECTIONS_MAX: usize = 256;
/// How many clients may wait to be accepted. The default is so low that the system would drop the connections of a probe.
const BACKLOG: u32 = 4_096;
/// How long a client has at least for its request. It also limits the rate at which a flood of connections keeps the
/// relay's thread busy, to less than two thousand a second.
const REQUEST_GRACE: Duration = Duration::from_millis(150);
const HEADER_BYTES_MAX: usize = 16 * 1024;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Each connection serves one request. This covers everything from the accept to the last byte of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failed accept, for example because there are no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

const NOT_BY_NAME: &str = "Use the IP address or localhost, for example http://127.0.0.1:10187/. Other names are \
     refused, so that web pages on the Internet cannot read this endpoint (DNS rebinding). A reverse proxy must send \
     `Host: localhost`.\n";

/// The relay that the endpoint shows.
pub struct Observed {
    pub stats: Arc<Stats>,
    pub config: watch::Receiver<Config>,
    /// The file of the configuration, for the commands that the status page names.
    pub config_file: Option<PathBuf>,
}

pub struct Listening(TcpListener);

impl Listening {
    /// Opens the port, so that a port in use is reported before anything starts.
    pub fn open(listen: SocketAddr) -> io::Result<Listening> {
        let open = || {
            let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(listen)?;
            socket.listen(BACKLOG)
        };
        open().map(Listening).map_err(|error| {
            let fix = "Choose another address or port, or \"off\"";
            let text = format!("Cannot listen on [admin] listen = \"{listen}\": {error}. {fix}");
            io::Error::new(error.kind(), text)
        })
    }

    /// The address, with the actual port if the configured one is 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves forever. Dropping the future closes the port and every connection.
    pub async fn serve(self, observed: Observed) -> Infallible {
        // Without a local address, the socket is broken, and no one can connect.
        let address = self.address().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        let stats = Arc::clone(&observed.stats);
        let page = Arc::new(Page::new(observed, address));
        let router = router(stats, Arc::clone(&page), address);
        tokio::select! {
            never = self.accept(router) => match never {},
            never = page.keep() => match never {},
        }
    }

    async fn accept(self, router: Router) -> Infallible {
        let mut tasks = JoinSet::new();
        let mut open: Vec<Open> = Vec::new();
        loop {
            open.retain(|connection| !connection.task.is_finished());
            let is_full = open.len() >= CONNECTIONS_MAX;
            let victim = open.iter().min_by_key(|one| (one.has_request.load(Ordering::Relaxed), one.since));
            let expires = victim.map_or_else(Instant::now, |victim| victim.since + REQUEST_GRACE);
            tokio::select! {
                biased;
                Some(_) = tasks.join_next() => {}
                () = sleep_until(expires), if is_full => {
                    victim.inspect(|victim| victim.task.abort());
                    // The aborted task ends before the next one is chosen.
                    yield_now().await;
                }
                accepted = self.0.accept(), if !is_full => match accepted {
                    Ok((stream, _)) => {
                        let has_request = Arc::new(AtomicBool::new(false));
                        let answering = answer(stream, router.clone(), Arc::clone(&has_request));
                        open.push(Open { since: Instant::now(), has_request, task: tasks.spawn(answering) });
                        // A request that has already arrived is read before further connections are accepted.
                        yield_now().await;
                    }
                    Err(error) => {
                        tracing::debug!("cannot accept a connection on [admin] listen: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

struct Open {
    since: Instant,
    /// Whether the client has sent a complete request.
    has_request: Arc<AtomicBool>,
    task: AbortHandle,
}

async fn answer(stream: TcpStream, router: Router, has_request: Arc<AtomicBool>) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        has_request.store(true, Ordering::Relaxed);
        router.call(request)
    });
    let answering = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Errors of clients are not reported.
    let _ = timeout(CONNECTION_TIMEOUT, answering).await;
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
    let mut response = if is_open || is_trusted(request.uri(), request.headers()) {
        next.run(request).await
    } else {
        (StatusCode::MISDIRECTED_REQUEST, NOT_BY_NAME).into_response()
    };
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn show_metrics(State(shown): State<AdminState>) -> Result<impl IntoResponse, StatusCode> {
    let text = shown.metrics.text().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text))
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
        None => (StatusCode::OK, format!("{}\n", shown.stats.notes.ready())),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// Whether the request names this endpoint by address or as `localhost`. Browsers always name it; simple clients may not.
fn is_trusted(uri: &Uri, headers: &HeaderMap) -> bool {
    let by_header = headers.get_all(header::HOST).iter().all(|host| host.to_str().is_ok_and(is_own));
    let by_target = uri.authority().is_none_or(|target| is_own(target.as_str()));
    by_header && by_target
}

fn is_own(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn trusted(uri: &str, host: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        is_trusted(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn only_addresses_and_localhost_are_trusted() {
        for own in ["127.0.0.1:10187", "127.0.0.1", "[::1]:10187", "10.1.2.3:80", "localhost", "LocalHost:1"]
        {
            assert!(trusted("/", Some(own)), "{own}");
        }
        let foreign = [
            "evil.example",
            "evil.example:10187",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "localhost@evil.example",
            "relay",
            "",
            "127.0.0.1, evil.example",
        ];
        for foreign in foreign {
            assert!(!trusted("/", Some(foreign)), "{foreign:?}");
        }
        assert!(trusted("/", None), "not a browser");
        assert!(!trusted("http://evil.example/", Some("127.0.0.1")));
        assert!(trusted("http://127.0.0.1/", Some("127.0.0.1")));
    }
}
