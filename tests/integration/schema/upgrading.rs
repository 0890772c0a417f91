//! The promises of docs/upgrading.md about a relay and a schema of different versions.

use std::time::Duration;

use crate::support::command::Ended;
use crate::support::database::run;
use crate::support::notify_socket::NotifySocket;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE application_name = $1 AND datname = current_database()";

/// The state before migration 7.
const OLDER: &str = "DELETE FROM app.outbox_migration WHERE number = 7";

const PERIOD: Duration = Duration::from_secs(150);

async fn command(outbox: &Outbox, args: &'static [&'static str]) -> Ended {
    let relay = if args[0] == "run" { outbox.relay() } else { outbox.operator() };
    let relay =
        if args[0] == "migrate" { relay.set("postgres", "url", outbox.database.url()) } else { relay };
    tokio::task::spawn_blocking(move || relay.command(args)).await.unwrap()
}

async fn insert(outbox: &Outbox, numbers: std::ops::Range<i64>) {
    rows::insert(outbox, "order", 20, numbers, Filling::Nothing).await;
}

/// Migrate first, then restart the relays one by one. In between, rows are published, and no relay starts that cannot run on
/// the new schema.
#[tokio::test]
async fn running_relay_continues_with_a_newer_schema_and_no_outdated_relay_starts_on_it() {
    let outbox = Outbox::create("upgraded", 3).await;
    let mut relay = outbox.start_relay().await;
    insert(&outbox, 0..100).await;
    outbox.wait_until_drained(STALLED).await;

    run(&outbox.client, "INSERT INTO app.outbox_migration VALUES (9, 'later', 'x', now(), '99.0.0')").await;
    insert(&outbox, 100..200).await;
    outbox.wait_until_drained(STALLED).await;
    // New connections do not check the schema again.
    let row = outbox.client.query_one(TERMINATE, &[&relay.name]).await.unwrap();
    assert!(row.get::<_, i64>(0) > 0);
    insert(&outbox, 200..300).await;
    outbox.wait_until_drained(STALLED).await;

    command(&outbox, &["run", "--once"])
        .await
        .fails(78, &["migration 9 (later)", "upgrade this binary to 99.0.0 or later"]);
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// A restart between the migration and the upgrade, and a rollback.
#[tokio::test]
async fn relay_starts_on_a_newer_schema_that_allows_its_version() {
    let outbox = Outbox::create("allowed", 1).await;
    let own = env!("CARGO_PKG_VERSION");
    run(
        &outbox.client,
        &format!("INSERT INTO app.outbox_migration VALUES (9, 'later', 'x', now(), '{own}')"),
    )
    .await;
    let mut relay = outbox.start_relay().await;
    let warnings = relay.log().matches("schema_newer").count();
    assert_eq!(warnings, 1, "{}", relay.log());
    insert(&outbox, 0..100).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert!(command(&outbox, &["migrate"]).await.succeeds().contains("up to date"));

    for unfit in ["", "0.1", "0.1.x", "99.0.0"] {
        run(
            &outbox.client,
            &format!("UPDATE app.outbox_migration SET min_relay = '{unfit}' WHERE number = 9"),
        )
        .await;
        command(&outbox, &["run", "--once"]).await.fails(78, &["migration 9 (later) is unknown"]);
    }
    run(&outbox.client, "ALTER TABLE app.outbox_migration DROP COLUMN min_relay").await;
    command(&outbox, &["run"]).await.fails(78, &["migration 9 (later) is unknown"]);
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn relay_waits_for_a_pending_migration_and_starts_by_itself() {
    let outbox = Outbox::create("pending", 1).await;
    // The table of migrations has no column for the relay's version yet.
    run(&outbox.client, OLDER).await;
    run(&outbox.client, "ALTER TABLE app.outbox_migration DROP COLUMN min_relay").await;
    insert(&outbox, 0..100).await;
    let mut socket = NotifySocket::bind();
    let relay = outbox
        .relay()
        .set("admin", "listen", "127.0.0.1:0")
        .set_environment("WATCHDOG_USEC", PERIOD.as_micros().to_string());
    let mut relay = socket.tell(relay).spawn(&["run"]);
    let pending = "migration 7 (privileges) is not applied";
    relay.wait_for_log("waiting for the migration").await;

    socket.wait_for("STATUS=schema: ").await;
    let reason = relay.not_ready().await.unwrap();
    assert!(reason.contains("schema: ") && reason.contains(pending), "{reason}");
    assert_eq!(relay.get("/livez").await.unwrap().0, 200);
    assert_eq!(relay.metric("outbox_relay_postgres_up").await, Some(1.0));
    let reached = async || relay.metric("outbox_relay_kafka_up").await == Some(1.0);
    wait_until("the metrics show that Kafka answers", STALLED, reached).await;
    assert_eq!(relay.metric("outbox_relay_ready").await, Some(0.0));
    command(&outbox, &["run", "--once"]).await.fails(78, &[pending, "outbox-relay migrate"]);
    let checks =
        |received: &[String]| received.iter().filter(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")).count();
    wait_until("the schema is checked again", STALLED, async || checks(socket.listen()) >= 3).await;
    assert!(!socket.received.contains(&"READY=1".to_owned()), "{socket:?}");
    assert!(!socket.feeds().is_empty(), "{socket:?}");

    command(&outbox, &["migrate"]).await.succeeds();
    socket.wait_for("READY=1").await;
    outbox.wait_until_drained(STALLED).await;
    assert_eq!(relay.log().matches("schema_older").count(), 1, "{}", relay.log());
    assert_eq!(relay.not_ready().await, None);
    let recorded = "SELECT count(*) FROM app.outbox_migration WHERE min_relay = '0.1.0'";
    assert!(outbox.count(recorded).await >= 3);
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// `migrate`, then the output of `migrate --print-roles`.
#[tokio::test]
async fn relay_that_waited_for_a_migration_also_waits_for_its_privileges() {
    let outbox = Outbox::create("then_granted", 1).await;
    let role = outbox.roles.relay();
    run(&outbox.client, OLDER).await;
    run(&outbox.client, &format!("REVOKE SELECT ON app.outbox_lane FROM {role}")).await;
    let mut relay = outbox.relay().spawn(&["run"]);
    relay.wait_for_log("migration 7 (privileges) is not applied").await;
    command(&outbox, &["migrate"]).await.succeeds();
    let only_grant = format!("cannot be used: \"app\".\"outbox_lane\": role {role} lacks SELECT");
    relay.wait_for_log(&only_grant).await;
    run(&outbox.client, &format!("GRANT SELECT ON app.outbox_lane TO {role}")).await;
    relay.wait_for_log("relay started").await;
    assert!(relay.stop().await.success());

    // Without a migration, a missing privilege is an error.
    run(&outbox.client, &format!("REVOKE SELECT ON app.outbox_lane FROM {role}")).await;
    command(&outbox, &["run"]).await.fails(78, &["lacks SELECT"]);
    outbox.drop().await;
}
