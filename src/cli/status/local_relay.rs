//! The state of a relay on this host, from its `[admin] listen` endpoint. The database does not show that Kafka is
//! unavailable.

use crate::status::report::LocalRelay;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use settings::text::in_line;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// It is on this host, so it answers at once or not at all.
const WITHIN: Duration = Duration::from_millis(500);
const ANSWER_BYTES_MAX: usize = 4096;
const SHOWN: usize = 300;

/// Requests `/readyz` at this address. `None` if nothing or another program answers.
pub(in crate::cli) async fn request(listen: Option<SocketAddr>) -> Option<LocalRelay> {
    let address = reachable(listen.filter(|address| address.port() != 0)?);
    let (status, text) = timeout(WITHIN, get(address)).await.ok().flatten()?;
    let ready = match status {
        StatusCode::OK if text.starts_with("ready") => true,
        StatusCode::SERVICE_UNAVAILABLE => false,
        _ => return None,
    };
    Some(LocalRelay { address: address.to_string(), ready, says: in_line(text.trim_end(), SHOWN) })
}

/// Replaces the address for "all interfaces" with the loopback address.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    match listen {
        SocketAddr::V4(address) if address.ip().is_unspecified() => listen.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(address) if address.ip().is_unspecified() => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    listen
}

async fn get(address: SocketAddr) -> Option<(StatusCode, String)> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let request = Request::get("/readyz")
        .header(HOST, address.to_string())
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .ok()?;
    let answer = async move {
        let response = sender.send_request(request).await.ok()?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.ok()?;
        Some((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    };
    // The connection ends with the answer. If it fails, there is no answer.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}
