//! A client of the admin endpoint can only read from a relay.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::wait::{STALLED, wait_until};

/// A client that does not finish its request is disconnected after 5 s. No connection lasts longer than 10 s.
const CUT_OFF: std::ops::Range<Duration> = Duration::from_secs(3)..Duration::from_secs(15);
const CONNECTIONS_MAX: usize = 16;

async fn connect(relay: &RelayProcess) -> TcpStream {
    let log = relay.log();
    let (_, address) = log.split_once("serving metrics and health checks at http://").unwrap();
    TcpStream::connect(address.split('/').next().unwrap()).await.unwrap()
}

/// Everything that arrives until the relay closes or resets the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = async {
        let mut buffer = [0; 4_096];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            answer.extend_from_slice(&buffer[..count]);
        }
    };
    timeout(STALLED, read).await.expect("the relay did not close the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn ask(relay: &RelayProcess, request: &str) -> String {
    let mut stream = connect(relay).await;
    // The relay may close the connection before the whole request is sent.
    let _ = stream.write_all(request.as_bytes()).await;
    rest(&mut stream).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn admin_endpoint_is_read_only_and_limits_headers_time_and_connections() {
    let outbox = Outbox::create("admin", 1).await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    let ready = async || status(&ask(&relay, "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await) == "200";
    wait_until("the relay is ready", STALLED, ready).await;
    for (path, host) in [("/", "127.0.0.1"), ("/metrics", "x"), ("/livez", "x"), ("/readyz", "x")] {
        let answer = ask(&relay, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
        assert_eq!(status(&answer), "200", "{path}: {answer}");
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let answer = ask(
                &relay,
                &format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 2\r\n\r\n{{}}"),
            )
            .await;
            assert_eq!(status(&answer), "405", "{method} {path}: {answer}");
        }
    }
    assert_eq!(status(&ask(&relay, "GET /config HTTP/1.1\r\nhost: x\r\n\r\n").await), "404");

    let large = format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n", "x".repeat(64 * 1_024));
    let answer = ask(&relay, &large).await;
    assert!(["431", "none"].contains(&status(&answer)), "{answer}");
    let fits = format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n", "x".repeat(8 * 1_024));
    assert_eq!(status(&ask(&relay, &fits).await), "200");

    let begun = Instant::now();
    let dribbled = dribble(connect(&relay).await).await;
    println!(
        "a client that sends single bytes is disconnected after {:.1?}, {dribbled} bytes",
        begun.elapsed()
    );
    assert!(CUT_OFF.contains(&begun.elapsed()), "{:?}", begun.elapsed());

    // When all connections are in use, the next client waits until one of them is disconnected.
    let begun = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = connect(&relay).await;
        stream.write_all(b"GET /livez").await.unwrap();
        silent.push(stream);
    }
    let answer = ask(&relay, "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
    println!("the client after {CONNECTIONS_MAX} silent ones is answered after {:.1?}", begun.elapsed());
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(CUT_OFF.contains(&begun.elapsed()), "{:?}", begun.elapsed());
    drop(silent);

    assert!(relay.stop().await.success());
    outbox.drop().await;
}

/// Sends a header byte by byte while the relay accepts it. Returns the number of bytes.
async fn dribble(mut stream: TcpStream) -> usize {
    let mut sent = 0;
    for byte in b"GET /livez HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'x')) {
        let mut buffer = [0; 256];
        // The pause between two bytes is also the time to wait for the end of the connection.
        match timeout(Duration::from_millis(200), stream.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) => break,
            Ok(Ok(_)) => continue, // a response, before the end of the connection
            Err(_) => {}
        }
        if stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        sent += 1;
    }
    sent
}
