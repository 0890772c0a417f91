//! A proxy between a driver and PostgreSQL that counts the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Counts the requests that wait for an answer.
#[derive(Clone, Default)]
pub struct Requests(Arc<AtomicUsize>);

impl Requests {
    /// The number of requests since the last call.
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// Starts a proxy for the server of `url` and returns the proxy's URL.
pub async fn start(url: &str) -> (String, Requests) {
    let config: Config = url.parse().unwrap();
    let Some(Host::Tcp(host)) = config.get_hosts().first().cloned() else {
        panic!("the test needs PostgreSQL over TCP")
    };
    let server = (host, config.get_ports().first().copied().unwrap_or(5432));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (user, database) =
        (config.get_user().unwrap_or("postgres"), config.get_dbname().unwrap_or("postgres"));
    let port = listener.local_addr().unwrap().port();
    let proxy = format!("postgres://{user}@127.0.0.1:{port}/{database}?sslmode=disable");
    let requests = Requests::default();
    let counter = requests.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect((server.0.as_str(), server.1)).await.unwrap();
            let ((from_client, mut to_client), (mut from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(forward(from_client, to_server, counter.clone()));
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        }
    });
    (proxy, requests)
}

/// The start-up message is its length and its body. Every other message starts with a letter. Sync ends a request of the
/// extended protocol. Query is a request of the simple protocol.
async fn forward(mut client: OwnedReadHalf, mut server: OwnedWriteHalf, requests: Requests) -> Option<()> {
    let mut is_first = true;
    loop {
        let mut message = Vec::new();
        if !is_first {
            message.push(client.read_u8().await.ok()?);
            if matches!(message[0], b'S' | b'Q') {
                requests.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        is_first = false;
        let length = client.read_u32().await.ok()?;
        message.extend(length.to_be_bytes());
        let start = message.len();
        message.resize(start + length as usize - 4, 0);
        client.read_exact(&mut message[start..]).await.ok()?;
        server.write_all(&message).await.ok()?;
    }
}
