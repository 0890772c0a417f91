//! PostgreSQL restarts under load, with one relay.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, Shutdown};
use crate::support::wait::{STALLED, wait_until};
use crate::world;

const RESTARTS: usize = 4;

/// The settled rows that were on the server's disk before a restart.
struct Flushed {
    events: HashSet<Uuid>,
    /// The time since 1970.
    stopped: Duration,
}

/// Restarts repeatedly while a batch is in flight. Returns the number of duplicates.
async fn restarted(test: &str, how: Shutdown) -> usize {
    let (mut server, mut outbox, writers) = world::server_under_load(test, &[("fsync", "on")]).await;
    let mut relay = world::relay(&outbox).start().await;
    let mut flushed = Vec::new();
    for restart in 1..=RESTARTS {
        outbox.wait_until_settled(500, STALLED).await;
        let events = settled_and_flushed(&outbox).await;
        outbox.wait_until_publishing(&relay).await;
        flushed.push(Flushed { events, stopped: SystemTime::now().duration_since(UNIX_EPOCH).unwrap() });
        server.restart(how).await;
        let back = Instant::now();
        outbox.reconnect().await;
        world::resumed(&outbox, &format!("{how:?} restart {restart}"), back).await;
        world::wait_for_outages(&relay, restart).await;
        assert!(relay.is_running());
    }
    writers.stop().await;
    let report = world::verdict(&outbox, &mut [relay], &format!("{RESTARTS} times {how:?}")).await;
    let again = sent_again(&outbox, &flushed).await;
    assert!(again.is_empty(), "sent again although their settlement was flushed: {again:?}");
    outbox.drop().await;
    report.duplicates
}

/// Settlements are flushed soon, but not immediately.
async fn settled_and_flushed(outbox: &Outbox) -> HashSet<Uuid> {
    let sql = "SELECT event_id FROM app.outbox WHERE sent_at IS NOT NULL";
    let events = outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let written = outbox.client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.unwrap();
    let written: String = written.get(0);
    let sql = format!("SELECT pg_current_wal_flush_lsn() >= '{written}'");
    wait_until("all settlements are flushed", STALLED, async || {
        outbox.client.query_one(&sql, &[]).await.unwrap().get(0)
    })
    .await;
    events
}

/// The events whose settlement was flushed before a restart and that were stored again after it.
async fn sent_again(outbox: &Outbox, flushed: &[Flushed]) -> Vec<Uuid> {
    let mut again = Vec::new();
    for record in consumer::read_all(&outbox.topics()).await {
        let stored = Duration::from_millis(record.timestamp_ms.unwrap().unsigned_abs());
        let event = record.event_id().unwrap();
        if flushed.iter().any(|before| stored > before.stopped && before.events.contains(&event)) {
            again.push(event);
        }
    }
    again
}

#[tokio::test]
async fn fast_restart_of_postgres_with_one_relay_repeats_nothing() {
    assert_eq!(restarted("fast_restart", Shutdown::Fast).await, 0);
}

#[tokio::test]
async fn immediate_restart_of_postgres_repeats_at_most_the_last_settlements() {
    restarted("immediate_restart", Shutdown::Immediate).await;
}

#[tokio::test]
async fn crash_of_postgres_repeats_at_most_the_last_settlements() {
    restarted("crash", Shutdown::Crash).await;
}

/// The failover tests rely on this.
#[tokio::test]
async fn promoted_standby_lacks_commits_made_after_it_was_detached() {
    let mut server = PostgresServer::start(&[]).await;
    run(&server.connect().await, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)").await;
    let standby = server.standby().await;
    run(&server.connect().await, "INSERT INTO kept VALUES (2)").await;
    server.wait_until_replayed(&standby).await;
    standby.detach().await;
    run(&server.connect().await, "INSERT INTO kept VALUES (3)").await;
    server.stop(Shutdown::Crash);
    standby.promote().await;
    let client = standby.connect().await;
    let kept: i32 = client.query_one("SELECT max(n) FROM kept", &[]).await.unwrap().get(0);
    assert_eq!(kept, 2);
    run(&client, "INSERT INTO kept VALUES (4)").await;
}
