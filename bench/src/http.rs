//! HTTP requests to servers on this machine, with a new connection for each: the relay's metrics and Kafka Connect.

use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Sends a request, such as `GET /metrics`, and returns the status and the body of the answer. Uses HTTP/1.0, so that the
/// answer is not chunked and the server closes the connection after it.
pub async fn request(address: &str, line: &str, body: &str, within: Duration) -> io::Result<(u16, String)> {
    let head = format!(
        "{line} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all((head + body).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = timeout(within, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let (status, body) = parse(&answer).ok_or_else(|| io::Error::other("not an HTTP response"))?;
    Ok((status, body.to_owned()))
}

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
