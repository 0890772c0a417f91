//! A broker advertises an address that this host cannot use. Its bootstrap address works.

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use std::time::Duration;

use crate::operating::commands::nowhere;
use crate::support::command::{Ended, binary};
use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

/// A name that does not exist, as long as the broker's address.
const UNKNOWN: &str = "k.invalid";
/// A connection that is not accepted by then waits forever.
const ACCEPTED_WITHIN: Duration = Duration::from_millis(500);

/// Each command names the address and where it comes from. `run` does not report that Kafka is available, until it is.
async fn is_named(test: &str, host: &str, port: u16, act: &str) {
    let outbox = Outbox::create(test, 3).await;
    let kafka = Proxy::open().await;
    kafka.advertise(host, port);
    let bootstrap = kafka.address();
    let problem =
        format!("the broker at {bootstrap} advertises {host}:{port}, which this host cannot {act} (");
    let remedy = "set advertised.listeners of the broker to an address that this host can resolve and reach, or fix DNS or";

    let configured = || outbox.relay().set("kafka", "bootstrap_servers", bootstrap.clone());
    configured().command(&["check-config", "--connect"]).fails(69, &[&problem, remedy]);
    configured().command(&["doctor"]).fails(1, &["advertised-address", &problem, remedy]);
    let folder = tempfile::tempdir().unwrap();
    let init = Ended::of(
        binary(&["init", "--dry-run", "--role", &format!("{test}_role"), "--brokers", &bootstrap])
            .args(["--database", &outbox.database.url(), "--config"])
            .arg(folder.path().join("config.toml")),
    );
    init.fails(69, &[&problem, remedy]);

    let mut relay = configured().set("log", "level", "info,outbox_relay=debug").start().await;
    rows::insert(&outbox, "order", 1, 0..3, Filling::Nothing).await;
    relay.wait_for_log(&format!("kafka unavailable, retrying: {problem}")).await;
    wait_until("several more probes", STALLED, async || {
        relay.log().matches("kafka still unavailable: the broker at").count() > 3
    })
    .await;
    assert!(!relay.log().contains("available again"), "{}", relay.log());
    kafka.advertise_proxy();
    outbox.wait_until_drained(STALLED).await;
    relay.wait_for_log("kafka available again").await;
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_advertised_name_that_does_not_exist_is_named() {
    is_named("advertised_unknown", UNKNOWN, 9092, "resolve").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_advertised_address_that_refuses_connections_is_named() {
    let address = nowhere();
    let (host, port) = address.rsplit_once(':').unwrap();
    is_named("advertised_refusing", host, port.parse().unwrap(), "reach").await;
}

/// As behind a firewall that drops packets.
#[tokio::test(flavor = "multi_thread")]
async fn an_advertised_address_that_does_not_answer_is_named() {
    let (listener, _full) = full_listener().await;
    let port = listener.local_addr().unwrap().port();
    is_named("advertised_silent", "127.0.0.1", port, "reach").await;
}

/// A listener with a full queue, so that the kernel drops further connection attempts.
async fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = timeout(ACCEPTED_WITHIN, TcpStream::connect(address)).await {
        queued.push(stream.unwrap());
    }
    (listener, queued)
}
