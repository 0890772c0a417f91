//! The HTTP server of the admin endpoint, with limits on requests.
//!
//! Each client gets a connection at once, because probes decide whether the relay is restarted. When all connections are in
//! use, the oldest one without a complete request is closed. There is no limit for each address: probes on the same host, or
//! behind the same NAT, share theirs with other clients.

use super::page::Page;
use super::{Observed, router};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};

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

/// Why the endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "Cannot listen on [admin] listen = \"{listen}\": {cause}. Choose another address or port, or \"off\""
)]
pub struct AdminError {
    listen: SocketAddr,
    cause: io::Error,
}

/// The open port.
pub struct Listening(TcpListener);

impl Listening {
    /// Opens the port, so that a port in use is reported before anything starts.
    pub fn open(listen: SocketAddr) -> Result<Listening, AdminError> {
        let open = || {
            let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(listen)?;
            socket.listen(BACKLOG)
        };
        open().map(Listening).map_err(|cause| AdminError { listen, cause })
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

    async fn accept(self, router: axum::Router) -> Infallible {
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

/// A connection that is being served.
struct Open {
    since: Instant,
    /// Whether the client has sent a complete request.
    has_request: Arc<AtomicBool>,
    task: AbortHandle,
}

async fn answer(stream: TcpStream, router: axum::Router, has_request: Arc<AtomicBool>) {
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
