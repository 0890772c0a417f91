//! What docs/upgrading.md promises of a relay and a schema that are not of one version.

use std::time::Duration;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};

const STALLED: Duration = Duration::from_secs(30);

const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE application_name = $1 AND datname = current_database()";

/// Migrate first, then restart the relays one by one: rows flow in between, and nobody starts by mistake.
#[tokio::test]
async fn a_relay_that_runs_goes_on_when_the_schema_becomes_newer_and_none_starts_on_it() {
    let outbox = Outbox::create("upgraded", 3).await;
    let mut relay = outbox.start_relay().await;
    rows::insert(&outbox, "order", 20, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;

    run(&outbox.client, "INSERT INTO app.outbox_migration VALUES (9, 'later', 'x')").await;
    rows::insert(&outbox, "order", 20, 100..200, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    // New connections look no closer at it than old ones.
    let row = outbox.client.query_one(TERMINATE, &[&relay.name]).await.unwrap();
    assert!(row.get::<_, i64>(0) > 0);
    rows::insert(&outbox, "order", 20, 200..300, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;

    let other = outbox.relay();
    let ended = tokio::task::spawn_blocking(move || other.command(&["run", "--once"])).await.unwrap();
    ended.fails(78, &["migration 9 (later)", "upgrade this binary"]);
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}
