//! The HTTP server of the admin endpoint, with limits on requests.

use super::page::Page;
use super::{Observed, router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const CONNECTIONS_MAX: usize = 16;
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
    pub async fn open(listen: SocketAddr) -> Result<Listening, AdminError> {
        let listener = TcpListener::bind(listen).await.map_err(|cause| AdminError { listen, cause })?;
        Ok(Listening(listener))
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
        let router = router(stats, Arc::clone(&page));
        tokio::select! {
            never = self.accept(router) => match never {},
            never = page.keep() => match never {},
        }
    }

    async fn accept(self, router: axum::Router) -> Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(_) = connections.join_next() => {}
                accepted = self.0.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => _ = connections.spawn(answer(stream, router.clone())),
                    Err(error) => {
                        tracing::debug!("cannot accept a connection on [admin] listen: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

async fn answer(stream: TcpStream, router: axum::Router) {
    let answering = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Errors of clients are not reported.
    let _ = timeout(CONNECTION_TIMEOUT, answering).await;
}
