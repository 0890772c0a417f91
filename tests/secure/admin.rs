//! A client of the admin endpoint can only read from a relay.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::wait::{STALLED, wait_until};

/// A client that does not finish its request is disconnected after 5 s. No connection lasts longer than 10 s.
const CUT_OFF: std::ops::Range<Duration> = Duration::from_secs(3)..Duration::from_secs(15);
/// More than the relay serves at once.
const FLOOD: usize = 500;

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

async fn wait_until_ready(relay: &RelayProcess) {
    let ready =
        async || status(&ask(relay, "GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await) == "200";
    wait_until("the relay is ready", STALLED, ready).await;
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn admin_endpoint_is_read_only_and_limits_headers_and_time() {
    let outbox = Outbox::create("admin", 1).await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    wait_until_ready(&relay).await;
    for (path, host) in
        [("/", "127.0.0.1"), ("/metrics", "[::1]:1"), ("/livez", "localhost:1"), ("/readyz", "127.0.0.9")]
    {
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
    assert_eq!(status(&ask(&relay, "GET /config HTTP/1.1\r\nhost: localhost\r\n\r\n").await), "404");

    let large =
        format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n\r\n", "x".repeat(64 * 1_024));
    let answer = ask(&relay, &large).await;
    assert!(["431", "none"].contains(&status(&answer)), "{answer}");
    let fits =
        format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n\r\n", "x".repeat(8 * 1_024));
    assert_eq!(status(&ask(&relay, &fits).await), "200");

    let begun = Instant::now();
    let dribbled = dribble(connect(&relay).await).await;
    println!(
        "a client that sends single bytes is disconnected after {:.1?}, {dribbled} bytes",
        begun.elapsed()
    );
    assert!(CUT_OFF.contains(&begun.elapsed()), "{:?}", begun.elapsed());

    assert!(relay.stop().await.success());
    outbox.drop().await;
}

/// Holds a connection without a complete request, and opens it again when it is closed.
fn hold(address: &str, number: usize, ended: &AtomicBool, opened: &AtomicUsize) {
    while !ended.load(Ordering::Relaxed) {
        let Ok(mut stream) = std::net::TcpStream::connect(address) else { continue };
        opened.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(2) {
            _ = stream.write_all(b"GET /livez HTTP/1.1\r\nhost: ");
        }
        // Returns when the relay closes the connection, and when the relay has ended.
        _ = stream.read(&mut [0; 16]);
    }
}

#[tokio::test]
async fn a_flood_of_connections_does_not_keep_probes_waiting() {
    let outbox = Outbox::create("admin_flood", 1).await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    let (ended, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let holders: Vec<_> = (0..FLOOD)
        .map(|number| {
            let (address, ended, opened) = (relay.address(), Arc::clone(&ended), Arc::clone(&opened));
            let thread = std::thread::Builder::new().stack_size(64 * 1_024);
            thread.spawn(move || hold(&address, number, &ended, &opened)).unwrap()
        })
        .collect();
    wait_until("all connections are open", STALLED, async || opened.load(Ordering::Relaxed) >= FLOOD).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let begun = Instant::now();
        let answer = ask(&relay, "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert_eq!(status(&answer), "200", "{answer}");
        slowest = slowest.max(begun.elapsed());
    }
    println!("the slowest of 10 probes took {slowest:.1?}; {} connections", opened.load(Ordering::Relaxed));
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    ended.store(true, Ordering::Relaxed);
    assert!(relay.stop().await.success());
    holders.into_iter().for_each(|holder| holder.join().unwrap());
    outbox.drop().await;
}

/// Other websites can only send their own name (DNS rebinding).
#[tokio::test]
async fn on_loopback_only_requests_by_address_or_as_localhost_are_answered() {
    let outbox = Outbox::create("admin_host", 1).await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    wait_until_ready(&relay).await;
    for path in ["/", "/metrics", "/livez", "/readyz"] {
        for (host, expected) in [("evil.example:1", "421"), ("localhost:1", "200"), ("10.0.0.1", "200")] {
            let answer = ask(&relay, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
            assert_eq!(status(&answer), expected, "{path} {host}: {answer}");
            assert!(answer.contains("x-content-type-options: nosniff\r\n"), "{answer}");
        }
        assert_eq!(status(&ask(&relay, &format!("GET {path} HTTP/1.0\r\n\r\n")).await), "200");
    }
    assert!(relay.stop().await.success());

    let mut relay = outbox.relay().set("admin", "listen", "0.0.0.0:0").start().await;
    for (path, expected) in [("/", "421"), ("/metrics", "200"), ("/livez", "200")] {
        let answer = ask(&relay, &format!("GET {path} HTTP/1.1\r\nhost: relay.example\r\n\r\n")).await;
        assert_eq!(status(&answer), expected, "{path}: {answer}");
    }
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
