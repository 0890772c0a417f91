//! A man in the middle that terminates TLS on both sides and reads what a PostgreSQL client sends.

use openssl::ssl::{SslAcceptor, SslConnector, SslMethod, SslVerifyMode};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_openssl::SslStream;

use super::certificates::Identity;

/// The message with which a client requests TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A proxy between clients and one server. It ends when it is dropped.
pub struct TlsProxy {
    port: u16,
    seen: Arc<Mutex<Vec<u8>>>,
    task: JoinHandle<()>,
}

impl TlsProxy {
    /// Presents this certificate to clients, and trusts any certificate of the server.
    pub async fn start(server: &str, shown: &Identity) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_certificate(&shown.cert).unwrap();
        acceptor.set_private_key(&shown.key).unwrap();
        let acceptor = acceptor.build();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (server, shared) = (server.to_owned(), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                // An error of one client ends only its own connection.
                tokio::spawn(connect(client, server.clone(), acceptor.clone(), Arc::clone(&shared)));
            }
        });
        Self { port, seen, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether a client has sent this text, which it believes to be secret.
    pub fn has_seen(&self, words: &str) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.windows(words.len()).any(|window| window == words.as_bytes())
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(
    mut client: TcpStream,
    server: String,
    acceptor: SslAcceptor,
    seen: Arc<Mutex<Vec<u8>>>,
) -> std::io::Result<()> {
    client.read_exact(&mut [0; 8]).await?;
    client.write_all(b"S").await?;
    let ssl = openssl::ssl::Ssl::new(acceptor.context())?;
    let mut client = SslStream::new(ssl, client)?;
    Pin::new(&mut client).accept().await.map_err(std::io::Error::other)?;

    let mut server = TcpStream::connect(server).await?;
    server.write_all(&SSL_REQUEST).await?;
    server.read_exact(&mut [0]).await?;
    let mut connector = SslConnector::builder(SslMethod::tls_client())?;
    connector.set_verify(SslVerifyMode::NONE);
    let ssl = connector.build().configure()?.verify_hostname(false).into_ssl("localhost")?;
    let mut server = SslStream::new(ssl, server)?;
    Pin::new(&mut server).connect().await.map_err(std::io::Error::other)?;

    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let forth = async {
        let mut buffer = [0; 4_096];
        loop {
            let count = from_client.read(&mut buffer).await?;
            if count == 0 {
                return to_server.shutdown().await;
            }
            seen.lock().unwrap().extend_from_slice(&buffer[..count]);
            to_server.write_all(&buffer[..count]).await?;
            to_server.flush().await?;
        }
    };
    let back = async { tokio::io::copy(&mut from_server, &mut to_client).await.map(drop) };
    tokio::select! { ended = forth => ended, ended = back => ended }
}
