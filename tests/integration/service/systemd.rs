//! The relay as a service: its notifications to systemd, how it ends, and its exit codes.

use rustix::process::Signal;
use std::time::{Duration, Instant};

use crate::support::database::{Database, run};
use crate::support::kafka_proxy::Proxy;
use crate::support::notify_socket::NotifySocket;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};

const NOTIFY_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn ready_is_sent_after_the_schema_check_and_stopping_after_sigterm() {
    let outbox = Outbox::create("notify", 1).await;
    let mut socket = NotifySocket::bind();
    let mut relay = socket.tell(outbox.relay()).spawn(&["run"]);
    socket.wait_for("READY=1").await;
    assert!(relay.log().contains("relay started"), "the schema was checked before READY: {}", relay.log());
    rows::insert(&outbox, "order", 10, 0..1_000, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    // The status follows the state of the servers. Kafka became available after READY.
    socket.wait_for("STATUS=relaying").await;
    assert!(!socket.received.contains(&"STOPPING=1".to_owned()), "{socket:?}");
    assert!(relay.stop().await.success());
    let received = socket.listen();
    let place = |line: &str| {
        received
            .iter()
            .position(|received| received == line)
            .unwrap_or_else(|| panic!("{line}: {received:?}"))
    };
    assert!(
        received[0].starts_with("STATUS=PostgreSQL: ") || received[0].starts_with("EXTEND_"),
        "{received:?}"
    );
    assert!(place("READY=1") < place("STATUS=relaying"), "{received:?}");
    // 50 s for rows in flight and 10 s more.
    assert_eq!(received[place("STOPPING=1") + 1], "EXTEND_TIMEOUT_USEC=60000000", "{received:?}");
    assert!(received.last().unwrap().starts_with("STATUS=stopping"), "{received:?}");
    for said_once in ["READY=1", "STOPPING=1"] {
        assert_eq!(received.iter().filter(|received| *received == said_once).count(), 1, "{received:?}");
    }
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn without_postgres_the_relay_is_not_ready_and_requests_more_time() {
    let outbox = Outbox::create("waiting", 1).await;
    let (role, _) = outbox.database.connect_as_new_role().await;
    let grants = postgres::access::grants::relay_grants(&"app.outbox".parse().unwrap(), &role);
    run(&outbox.client, &grants).await;
    run(&outbox.client, &format!("ALTER ROLE {role} NOLOGIN")).await;
    let url = outbox.database.url().replace("postgres@", &format!("{role}:test@"));
    let relay = || outbox.relay().set("postgres", "url", url.clone());

    let mut socket = NotifySocket::bind();
    let mut waiting = socket.tell(relay()).spawn(&["run"]);
    let times =
        |received: &[String]| received.iter().filter(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")).count();
    wait_until("more time is requested repeatedly", NOTIFY_TIMEOUT, async || times(socket.listen()) >= 3)
        .await;
    socket.wait_for(&format!("STATUS=PostgreSQL: connecting to PostgreSQL failed: role \"{role}\"")).await;
    assert!(!socket.received.contains(&"READY=1".to_owned()), "{socket:?}");
    // SIGTERM ends it while it waits.
    assert!(waiting.stop().await.success());
    assert!(socket.listen().contains(&"STOPPING=1".to_owned()), "{socket:?}");

    let mut socket = NotifySocket::bind();
    let mut waiting = socket.tell(relay()).spawn(&["run"]);
    socket.wait_for("STATUS=PostgreSQL: connecting").await;
    run(&outbox.client, &format!("ALTER ROLE {role} LOGIN")).await;
    socket.wait_for("READY=1").await;
    assert!(waiting.stop().await.success());
    run(&outbox.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    outbox.drop().await;
}

/// A relay with a batch in flight that Kafka does not acknowledge.
async fn stuck(test: &str, shutdown_timeout: &str) -> (Outbox, Proxy, RelayProcess) {
    let outbox = Outbox::create(test, 1).await;
    let mut kafka = Proxy::open().await;
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.address());
    let relay = relay.set("relay", "shutdown_timeout", shutdown_timeout).start().await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    wait_until("the first claim has ended", STALLED, async || outbox.claims().await == 0).await;
    kafka.stall().await;
    rows::insert(&outbox, "order", 10, 100..200, Filling::Nothing).await;
    // A claim that has not sent its rows yet would give them back.
    wait_until("a claim waits for Kafka", STALLED, async || outbox.waiting_claims().await > 0).await;
    (outbox, kafka, relay)
}

#[tokio::test]
async fn sigterm_waits_for_rows_in_flight() {
    let (outbox, mut kafka, mut relay) = stuck("drains", "50s").await;
    relay.signal(Signal::TERM);
    relay.wait_for_log("shutdown requested").await;
    kafka.resume().await;
    assert!(relay.ended().await.success());
    // Claimed rows are published and settled. The others are left for another relay.
    let mut other = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(other.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn sigterm_waits_no_longer_than_shutdown_timeout() {
    let (outbox, _kafka, mut relay) = stuck("too_late", "1s").await;
    let begun = Instant::now();
    let status = relay.stop().await;
    assert_eq!(status.code(), Some(1), "{}", relay.log());
    assert_within("the relay has ended", begun.elapsed(), Duration::from_secs(5));
    assert!(relay.log().contains("within shutdown_timeout"), "{}", relay.log());
    outbox.drop().await;
}

#[tokio::test]
async fn faults_that_an_operator_must_fix_end_it_with_78_and_a_remedy() {
    let database = Database::create("unfit").await;
    let base = || {
        let kafka = crate::support::topics::bootstrap();
        let relay = Relay::new().set("postgres", "url", database.url()).set("admin", "listen", "off");
        relay.set("kafka", "bootstrap_servers", kafka)
    };
    for (relay, says) in [
        (base(), "outbox-relay migrate"),
        (base().set("relay", "batch_size", 0), "batch_size"),
        (base().set("relay", "batch_sise", 5), "batch_size"),
        (base().set_kafka_property("acks", "1"), "acks"),
        (base().set("log", "level", "inof"), "info"),
    ] {
        let mut socket = NotifySocket::bind();
        let mut relay = socket.tell(relay).spawn(&["run"]);
        assert_eq!(relay.ended().await.code(), Some(78), "{}", relay.log());
        assert!(relay.log().contains(says), "{says}: {}", relay.log());
        assert!(!socket.listen().contains(&"READY=1".to_owned()), "{socket:?}");
    }
    let mut usage = base().spawn(&["run", "--twice"]);
    assert_eq!(usage.ended().await.code(), Some(2), "{}", usage.log());
    database.drop(&[]).await;
}
