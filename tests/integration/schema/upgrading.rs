//! The promises of docs/upgrading.md about a relay and a schema of different versions.

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::STALLED;

const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE application_name = $1 AND datname = current_database()";

/// Migrate first, then restart the relays one by one. In between, rows are published, and no outdated relay starts by
/// mistake.
#[tokio::test]
async fn running_relay_continues_with_a_newer_schema_and_no_outdated_relay_starts_on_it() {
    let outbox = Outbox::create("upgraded", 3).await;
    let mut relay = outbox.start_relay().await;
    rows::insert(&outbox, "order", 20, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;

    run(&outbox.client, "INSERT INTO app.outbox_migration VALUES (9, 'later', 'x')").await;
    rows::insert(&outbox, "order", 20, 100..200, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    // New connections do not check the schema again.
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
