//! SIGHUP: a running relay reloads its configuration.

use crate::support::notify_socket::NotifySocket;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

const READ: &str = "configuration reloaded";

fn base(outbox: &Outbox) -> Relay {
    outbox
        .relay()
        .set("admin", "listen", "127.0.0.1:0")
        .set("log", "level", "info")
        .set("relay", "workers", 1)
        .set("relay", "batch_size", 10)
}

async fn batches(relay: &RelayProcess) -> f64 {
    relay.metric("outbox_relay_batch_rows_count").await.unwrap()
}

/// Drains 1,000 rows, and returns the number of batches.
async fn batches_of_1_000(outbox: &Outbox, relay: &RelayProcess, from: i64) -> f64 {
    let before = batches(relay).await;
    rows::insert(outbox, "order", 10, from..from + 1_000, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    // The rows are counted just after the COMMIT that makes them visible.
    let rows = (from + 1_000) as f64;
    wait_until("all rows are counted", STALLED, async || {
        relay.metric("outbox_relay_batch_rows_sum").await == Some(rows)
    })
    .await;
    batches(relay).await - before
}

async fn wait_for_reloads(relay: &RelayProcess, times: usize) {
    wait_until("the configuration is reloaded", STALLED, async || relay.log().matches(READ).count() == times)
        .await;
}

#[tokio::test]
async fn a_reload_that_conflicts_with_settings_in_force_is_rejected() {
    let outbox = Outbox::create("reload_conflict", 1).await;
    let mut relay = base(&outbox).set("relay", "workers", 9).start().await;
    relay.reload(base(&outbox).set("relay", "batch_bytes", "1GiB"));
    relay.wait_for_log("reload rejected, keeping the current configuration").await;
    assert!(relay.log().contains("workers times batch_bytes is 9GiB"), "{}", relay.log());
    assert!(!relay.log().contains(READ), "{}", relay.log());
    assert!(relay.stop().await.success());
    outbox.drop().await;
}

#[tokio::test]
async fn limits_and_log_levels_apply_now_and_changes_that_need_a_restart_are_logged() {
    let outbox = Outbox::create("reload", 1).await;
    let mut socket = NotifySocket::bind();
    let mut relay = socket.tell(base(&outbox)).start().await;
    let small = batches_of_1_000(&outbox, &relay, 0).await;

    let larger = base(&outbox).set("relay", "batch_size", 5_000).set("relay", "workers", 3);
    let larger = larger.set("outbox", "on_sent", "delete").set("reaper", "interval", "7s");
    relay.reload(larger.clone());
    wait_for_reloads(&relay, 1).await;
    let large = batches_of_1_000(&outbox, &relay, 1_000).await;
    println!("1,000 rows: {small} batches of 10, then {large} of 5,000");
    assert!(small >= 100.0 && large <= 20.0, "{small} {large}");
    let rows = outbox.count("SELECT count(*) FROM app.outbox").await;
    assert_eq!(rows, 2_000, "on_sent must not change");
    for (line, times) in [
        ("[relay] batch_size changed, applied now", 1),
        ("[reaper] interval changed, applied now", 1),
        ("[relay] workers changed, applies after a restart", 1),
        ("[outbox] on_sent changed, applies after a restart", 1),
        ("changed, appl", 4),
    ] {
        assert_eq!(relay.log().matches(line).count(), times, "{line}: {}", relay.log());
    }
    let received = socket.listen();
    let place = received.iter().position(|line| line == "RELOADING=1").unwrap();
    assert!(received[place + 1].starts_with("MONOTONIC_USEC="), "{received:?}");
    assert!(received[place..].contains(&"READY=1".to_owned()), "{received:?}");

    // Changes the level per module, up and down again.
    assert!(!relay.log().contains("DEBUG"), "{}", relay.log());
    relay.reload(larger.clone().set("log", "level", "info,tokio_postgres=debug"));
    wait_for_reloads(&relay, 2).await;
    rows::insert(&outbox, "order", 10, 2_000..2_100, Filling::Nothing).await;
    relay.wait_for_log("DEBUG").await;
    // The reload itself is not logged at this level.
    relay.reload(larger.clone().set("log", "level", "error"));
    let started = |received: &[String]| received.iter().filter(|line| *line == "RELOADING=1").count();
    let done = |received: &[String]| received.iter().filter(|line| *line == "READY=1").count();
    wait_until("the configuration is reloaded", STALLED, async || {
        started(socket.listen()) == 3 && done(socket.listen()) == 4
    })
    .await;
    relay.reload(larger);
    wait_for_reloads(&relay, 3).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn invalid_file_changes_nothing_and_all_errors_are_logged() {
    let outbox = Outbox::create("reload_bad", 1).await;
    let mut socket = NotifySocket::bind();
    let mut relay = socket.tell(base(&outbox)).start().await;
    relay.reload(
        base(&outbox)
            .set("relay", "batch_size", 0)
            .set("relay", "batch_bites", "1MiB")
            .set("log", "level", "debug"),
    );
    relay.wait_for_log("reload rejected, keeping the current configuration").await;
    for part in ["batch_size", "did you mean `batch_bytes`?", "outbox-relay check-config"] {
        assert!(relay.log().contains(part), "{part}: {}", relay.log());
    }
    relay.reload_text("[postgres");
    wait_until("the second reload is rejected, too", STALLED, async || {
        relay.log().matches("keeping the current configuration").count() == 2
    })
    .await;
    let batches = batches_of_1_000(&outbox, &relay, 0).await;
    assert!(batches >= 100.0, "{batches}");
    assert!(!relay.log().contains("DEBUG") && !relay.log().contains(READ), "{}", relay.log());
    socket.wait_for("RELOADING=1").await;
    let ready = |received: &[String]| received.iter().filter(|line| *line == "READY=1").count();
    wait_until("systemd is notified that the relay continues", STALLED, async || ready(socket.listen()) == 3)
        .await;
    relay.reload(base(&outbox).set("relay", "batch_size", 100));
    wait_for_reloads(&relay, 1).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.drop().await;
}

/// SIGHUP does not end a relay that waits for PostgreSQL. The relay starts with the configuration that it has read
/// last.
#[tokio::test]
async fn relay_that_waits_for_postgres_applies_a_reload_before_it_starts() {
    let outbox = Outbox::create("reload_waiting", 1).await;
    let (role, _) = outbox.database.connect_as_new_role().await;
    let grants = postgres::access::grants::relay_grants(&"app.outbox".parse().unwrap(), &role);
    crate::support::database::run(&outbox.client, &grants).await;
    let login = async |allowed: &str| {
        crate::support::database::run(&outbox.client, &format!("ALTER ROLE {role} {allowed}")).await;
    };
    login("NOLOGIN").await;
    let mut socket = NotifySocket::bind();
    let url = outbox.database.url().replace("postgres@", &format!("{role}:test@"));
    let config =
        |rows: i64| base(&outbox).set("postgres", "url", url.clone()).set("relay", "batch_size", rows);
    let mut relay = socket.tell(config(10)).spawn(&["run"]);
    relay.wait_for_log("postgres unavailable").await;
    relay.reload(config(5_000));
    wait_for_reloads(&relay, 1).await;
    assert!(!socket.listen().contains(&"READY=1".to_owned()), "{socket:?}");
    login("LOGIN").await;
    socket.wait_for("READY=1").await;
    let batches = batches_of_1_000(&outbox, &relay, 0).await;
    assert!(batches <= 20.0, "{batches}");
    assert!(relay.stop().await.success(), "{}", relay.log());
    crate::support::database::run(&outbox.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    outbox.drop().await;
}
