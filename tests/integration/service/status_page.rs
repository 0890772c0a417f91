//! The status page of a running relay.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::operating::commands::nowhere;
use crate::operating::doctor::{EVENT, World};
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, wait_until};

const HOSTILE: &str = "<script>alert(1)</script>";
const ESCAPED: &str = "&#60;script&#62;alert(1)&#60;/script&#62;";

/// The head and the body of the response to a browser that uses this name.
async fn request(address: &str, path: &str, host: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    (head.to_owned(), body.to_owned())
}

async fn page(relay: &RelayProcess) -> String {
    let address = relay.address();
    let (head, body) = request(&address, "/", &address).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body
}

/// Waits until the page contains all of these texts.
async fn shows(relay: &RelayProcess, texts: &[&str]) -> String {
    let mut html = String::new();
    wait_until(&format!("the page contains {texts:?}"), STALLED, async || {
        html = page(relay).await;
        let missing = texts.iter().find(|text| !html.contains(**text));
        missing.is_none()
    })
    .await;
    html
}

fn with_page(relay: &Relay) -> Relay {
    relay.clone().set("admin", "listen", "127.0.0.1:0")
}

#[tokio::test]
async fn page_shows_the_state_of_the_outbox_and_escapes_its_content() {
    let mut world = World::new("page_state").await;
    world.outbox.create_topic("order", 1).await;
    world.sql(EVENT).await;
    let mut relay = with_page(&world.relay).set("outbox", "on_rejected", "block-key").start().await;
    world.outbox.wait_until_drained(STALLED).await;
    let html = shows(&relay, &["verdict healthy", "no events are waiting", "Nothing is paused."]).await;
    for text in [
        "<title>healthy · app.outbox · outbox-relay</title>",
        "<h2 id=\"configuration\">Effective configuration</h2>",
        "<th scope=\"row\">url</th><td>hidden</td>",
        "<a href=\"metrics\">",
        "1 since this relay started",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }

    world
        .sql(&format!(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('none', '1', 'X'), ('a b', '{HOSTILE}', 'X');
             INSERT INTO app.outbox_pause (topic, reason) VALUES ('events.paused', '{HOSTILE}');
             INSERT INTO app.outbox_dead_letter
                 (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, created_at, topic, reason, error)
             VALUES (4711, gen_random_uuid(), 'order', '1', 'X', 'payload-7Q4z', now(), 'events.order', 'record-too-large', 'e')"
        ))
        .await;
    let held = format!("<code>{}</code>", world.outbox.topic("none"));
    let html = shows(
        &relay,
        &["verdict behind", &held, "unknown-topic", "record-too-large", "invalid-topic-name", ESCAPED],
    )
    .await;
    assert!(html.contains("topic events.paused") && !html.contains("<script"), "{html}");
    assert!(!html.contains("payload-7Q4z"), "{html}");

    world.sql("INSERT INTO app.outbox_pause (reason) VALUES ('migrating consumers')").await;
    shows(
        &relay,
        &[
            "verdict stopped",
            "everything is paused by",
            "migrating consumers",
            "outbox-relay resume --config",
        ],
    )
    .await;
    assert!(relay.stop().await.success());
    world.drop().await;
}

#[tokio::test]
async fn page_is_protected_against_other_sites() {
    let world = World::new("page_protected").await;
    let mut relay = with_page(&world.relay).start().await;
    let address = relay.address();
    let port = address.rsplit(':').next().unwrap().to_owned();
    let (head, _) = request(&address, "/", &address).await;
    for header in [
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "x-content-type-options: nosniff",
        "x-frame-options: DENY",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "content-type: text/html; charset=utf-8",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    for host in [format!("localhost:{port}"), format!("[::1]:{port}"), "127.0.0.1".to_owned()] {
        assert!(request(&address, "/", &host).await.0.starts_with("HTTP/1.1 200"), "{host}");
    }
    for host in [format!("evil.example:{port}"), format!("127.0.0.1.evil.example:{port}")] {
        let (head, body) = request(&address, "/", &host).await;
        assert!(head.starts_with("HTTP/1.1 421") && !body.contains("app.outbox"), "{host}: {head}\n{body}");
    }
    let (_, html) = request(&address, "/?refresh=off", &address).await;
    assert!(!html.contains("http-equiv"), "{html}");
    assert!(relay.stop().await.success());
    world.drop().await;
}

#[tokio::test]
async fn page_is_served_without_kafka_and_without_postgres() {
    let world = World::new("page_away").await;
    let away = world.relay.clone().set("kafka", "bootstrap_servers", nowhere());
    let relay = with_page(&away).start().await;
    world.sql(EVENT).await;
    shows(&relay, &["verdict stopped", "not relaying", "is not ready: Kafka: ", "and 1 row waits"]).await;
    drop(relay);

    let url = format!("postgres://relay:hunter2@{}/app", nowhere());
    let mut relay = with_page(&world.relay.clone().set("postgres", "url", url)).spawn(&["run"]);
    relay.wait_for_log("postgres unavailable").await;
    let html =
        shows(&relay, &["verdict stopped", "connecting to PostgreSQL", "The database could not be read"])
            .await;
    assert!(html.contains("Effective configuration") && !html.contains("hunter2"), "{html}");
    drop(relay);
    world.drop().await;
}

#[tokio::test]
async fn page_is_fast_and_many_viewers_use_one_connection() {
    let world = World::new("page_viewers").await;
    let mut relay = with_page(&world.relay).start().await;
    shows(&relay, &["verdict healthy"]).await;
    let connections = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{} page'",
        relay.name
    );
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let begun = Instant::now();
        page(&relay).await;
        fastest = fastest.min(begun.elapsed());
    }
    println!("the fastest of 20 pages took {fastest:?}");
    assert!(fastest < Duration::from_millis(50), "{fastest:?}");
    join_all((0..50).map(|_| page(&relay))).await;
    // Two for the search for a pooler, which keeps none of them busy.
    let open = world.outbox.count(&connections).await;
    assert!((1..=2).contains(&open), "{open} connections");
    assert!(relay.stop().await.success());
    world.drop().await;
}

#[tokio::test]
async fn reload_changes_the_configuration_on_the_page() {
    let world = World::new("page_reload").await;
    let configured = with_page(&world.relay);
    let mut relay = configured.clone().set("relay", "batch_size", 77).start().await;
    shows(&relay, &["<th scope=\"row\">batch_size</th><td>77</td>"]).await;
    relay.reload(configured.set("relay", "batch_size", 78).set("relay", "workers", 9));
    let html = shows(&relay, &["<th scope=\"row\">batch_size</th><td>78</td>"]).await;
    assert!(html.contains("<th scope=\"row\">workers</th><td>2</td>"), "workers need a restart: {html}");
    assert!(relay.stop().await.success());
    world.drop().await;
}
