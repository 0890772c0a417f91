//! Kafka Connect's REST interface, with a new loopback connection for each request.

use anyhow::{Context, bail};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Connect answers after it has carried out a change, and starting a connector can take this long.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

/// Sends a request and returns the body of the answer, or `Null` if it is empty. If the status is not a success, the
/// error quotes the answer.
pub async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    let request = format!("{method} {path}");
    let answer = timeout(ANSWER_WITHIN, exchange(address, method, path, body))
        .await
        .with_context(|| format!("{request}: no answer within {ANSWER_WITHIN:?}"))?
        .with_context(|| request.clone())?;
    let (status, text) = parse(&answer).with_context(|| format!("{request}: not an HTTP response"))?;
    if !(200..300).contains(&status) {
        bail!("{request}: {status} {text}");
    }
    if text.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(text)?) }
}

/// Uses HTTP/1.0, so that the answer is not chunked and the server closes the connection after it.
async fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> std::io::Result<String> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all((head + &body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The status and the body.
fn parse(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_and_the_body_of_an_answer_are_found() {
        let answer = "HTTP/1.1 201 Created\r\nDate: today\r\n\r\n{\"name\":\"a\"}";
        assert_eq!(parse(answer), Some((201, "{\"name\":\"a\"}")));
        assert_eq!(parse("HTTP/1.1 202 Accepted\r\n\r\n"), Some((202, "")));
        assert_eq!(parse("what?"), None);
    }
}
