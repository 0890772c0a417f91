//! The relay as a service: what it tells systemd, how it ends, and with which exit code.

use rustix::process::Signal;
use std::time::{Duration, Instant};

use crate::support::database::{Database, run};
use crate::support::kafka_proxy::Proxy;
use crate::support::notify_socket::NotifySocket;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::wait_until;

const STALLED: Duration = Duration::from_secs(30);
const HEARD_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn systemd_hears_ready_after_the_schema_check_and_stopping_upon_sigterm() {
    let outbox = Outbox::create("notify", 1).await;
    let mut socket = NotifySocket::bind();
    let mut relay = socket.tell(outbox.relay()).spawn(&["run"]);
    socket.wait_for("READY=1").await;
    assert!(relay.log().contains("relay started"), "the schema was checked before READY: {}", relay.log());
    rows::insert(&outbox, "order", 10, 0..1_000, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    // The status follows what works: Kafka was heard of after READY.
    socket.wait_for("STATUS=relaying").await;
    assert!(!socket.heard.contains(&"STOPPING=1".to_owned()), "{socket:?}");
    assert!(relay.stop().await.success());
    let heard = socket.listen();
    let place = |line: &str| {
        heard.iter().position(|heard| heard == line).unwrap_or_else(|| panic!("{line}: {heard:?}"))
    };
    assert!(heard[0].starts_with("STATUS=Postgres: ") || heard[0].starts_with("EXTEND_"), "{heard:?}");
    assert!(place("READY=1") < place("STATUS=relaying"), "{heard:?}");
    // 50 s for what is in flight and 10 s more.
    assert_eq!(heard[place("STOPPING=1") + 1], "EXTEND_TIMEOUT_USEC=60000000", "{heard:?}");
    assert!(heard.last().unwrap().starts_with("STATUS=stopping"), "{heard:?}");
    for said_once in ["READY=1", "STOPPING=1"] {
        assert_eq!(heard.iter().filter(|heard| *heard == said_once).count(), 1, "{heard:?}");
    }
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn without_postgres_there_is_no_ready_but_more_time_is_asked_for() {
    let outbox = Outbox::create("waiting", 1).await;
    let (role, _) = outbox.database.connect_as_new_role().await;
    let grants = outbox_relay::postgres::access::grants::relay_grants(&"app.outbox".parse().unwrap(), &role);
    run(&outbox.client, &grants).await;
    run(&outbox.client, &format!("ALTER ROLE {role} NOLOGIN")).await;
    let url = outbox.database.url().replace("postgres@", &format!("{role}:test@"));
    let relay = || outbox.relay().set("postgres", "url", url.clone());

    let mut socket = NotifySocket::bind();
    let mut waiting = socket.tell(relay()).spawn(&["run"]);
    let times =
        |heard: &[String]| heard.iter().filter(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")).count();
    wait_until("more time is asked for again and again", HEARD_WITHIN, async || times(socket.listen()) >= 3)
        .await;
    socket.wait_for(&format!("STATUS=Postgres: connecting to PostgreSQL: role \"{role}\"")).await;
    assert!(!socket.heard.contains(&"READY=1".to_owned()), "{socket:?}");
    // Asked to end while it waits, it does.
    assert!(waiting.stop().await.success());
    assert!(socket.listen().contains(&"STOPPING=1".to_owned()), "{socket:?}");

    let mut socket = NotifySocket::bind();
    let mut waiting = socket.tell(relay()).spawn(&["run"]);
    socket.wait_for("STATUS=Postgres: connecting").await;
    run(&outbox.client, &format!("ALTER ROLE {role} LOGIN")).await;
    socket.wait_for("READY=1").await;
    assert!(waiting.stop().await.success());
    run(&outbox.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    outbox.drop().await;
}

/// A relay with a batch in flight that Kafka does not answer.
async fn stuck(test: &str, shutdown_timeout: &str) -> (Outbox, Proxy, RelayProcess) {
    let outbox = Outbox::create(test, 1).await;
    let mut kafka = Proxy::open().await;
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.address());
    let relay = relay.set("relay", "shutdown_timeout", shutdown_timeout).start().await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    kafka.hold_up().await;
    rows::insert(&outbox, "order", 10, 100..200, Filling::Nothing).await;
    wait_until("a claim is open", STALLED, async || outbox.claims().await > 0).await;
    (outbox, kafka, relay)
}

#[tokio::test]
async fn sigterm_waits_for_what_is_in_flight() {
    let (outbox, mut kafka, mut relay) = stuck("drains", "50s").await;
    relay.signal(Signal::TERM);
    relay.wait_for_log("shutdown requested").await;
    kafka.let_through().await;
    assert!(relay.ended().await.success());
    // What it had claimed is published and settled; what it had not is another relay's.
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
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(relay.log().contains("within shutdown_timeout"), "{}", relay.log());
    outbox.drop().await;
}

#[tokio::test]
async fn what_has_to_be_mended_first_ends_it_with_78_and_says_how() {
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
