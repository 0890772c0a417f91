//! A connection that counts its requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use crate::database::url;

/// The message Sync. It ends each request of the extended protocol, and the client waits for the answer.
const SYNC: [u8; 5] = [b'S', 0, 0, 0, 4];

/// Counts the requests that wait for an answer.
#[derive(Clone, Default)]
pub struct Requests(Arc<AtomicUsize>);

impl Requests {
    /// The number of requests since the last call.
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

struct Counted {
    stream: TcpStream,
    requests: Requests,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        let requests = bytes[..written].windows(SYNC.len()).filter(|window| *window == SYNC).count();
        self.requests.0.fetch_add(requests, Ordering::SeqCst);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

pub async fn connect() -> (Client, tokio::task::JoinHandle<()>, Requests) {
    let config: Config = url().parse().unwrap();
    let Some(Host::Tcp(host)) = config.get_hosts().first() else {
        panic!("the test needs PostgreSQL over TCP")
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let stream = TcpStream::connect((host.as_str(), port)).await.unwrap();
    let requests = Requests::default();
    let counted = Counted { stream, requests: requests.clone() };
    let (client, connection) = config.connect_raw(counted, NoTls).await.unwrap();
    let task = tokio::spawn(async move { connection.await.unwrap() });
    (client, task, requests)
}
