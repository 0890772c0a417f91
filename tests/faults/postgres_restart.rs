//! Postgres restarts in the middle of everything, beside one relay.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, Shutdown};
use crate::world::{self, STALLED};

const RESTARTS: usize = 4;
/// Settlements are flushed about every 0.2 s, 0.6 s at the latest (`wal_writer_delay`), by a process that has to get its
/// turn.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(2);

/// Restarts while a batch is in flight, again and again. Returns how many duplicates there are, and how long before one of
/// the restarts the earliest of the events was first stored that were sent twice.
async fn restarted(test: &str, how: Shutdown) -> (usize, Duration) {
    let (mut server, mut outbox, writers) = world::server_under_load(test, &[("fsync", "on")]).await;
    let mut relay = world::relay(&outbox).start().await;
    let mut stops = Vec::new();
    for restart in 1..=RESTARTS {
        outbox.wait_until_settled(500, STALLED).await;
        outbox.wait_until_publishing(&relay).await;
        stops.push(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        server.restart(how).await;
        let back = Instant::now();
        outbox.reconnect().await;
        world::resumed(&outbox, &format!("{how:?} restart {restart}"), back).await;
        world::wait_for_outages(&relay, restart).await;
        assert!(relay.is_running());
    }
    writers.stop().await;
    let report = world::verdict(&outbox, &mut [relay], &format!("{RESTARTS} times {how:?}")).await;
    let before = sent_twice_before(&outbox, &stops).await;
    outbox.drop().await;
    (report.duplicates, before)
}

async fn sent_twice_before(outbox: &Outbox, stops: &[Duration]) -> Duration {
    let mut stored: HashMap<_, Vec<Duration>> = HashMap::new();
    for record in consumer::read_all(&outbox.topics()).await {
        let at = Duration::from_millis(record.timestamp_ms.unwrap().unsigned_abs());
        stored.entry(record.event_id()).or_default().push(at);
    }
    let before = |first: &Duration| {
        let stop = stops.iter().find(|stop| *stop >= first);
        stop.map_or(Duration::ZERO, |stop| *stop - *first)
    };
    let twice = stored.values().filter(|times| times.len() > 1);
    twice.filter_map(|times| times.iter().min()).map(before).max().unwrap_or_default()
}

#[tokio::test]
async fn a_fast_restart_of_postgres_beside_one_relay_repeats_nothing() {
    let (duplicates, _) = restarted("fast_restart", Shutdown::Fast).await;
    assert_eq!(duplicates, 0);
}

#[tokio::test]
async fn an_immediate_restart_of_postgres_repeats_at_most_the_last_settlements() {
    let (duplicates, before) = restarted("immediate_restart", Shutdown::Immediate).await;
    println!("{duplicates} duplicates, of events stored up to {before:.2?} before a restart");
    assert!(before < LAST_SETTLEMENTS, "{before:?}");
}

#[tokio::test]
async fn a_crash_of_postgres_repeats_at_most_the_last_settlements() {
    let (duplicates, before) = restarted("crash", Shutdown::Crash).await;
    println!("{duplicates} duplicates, of events stored up to {before:.2?} before a crash");
    assert!(before < LAST_SETTLEMENTS, "{before:?}");
}

/// The tests about failover rely on it.
#[tokio::test]
async fn a_promoted_standby_lacks_what_came_after_it_was_detached() {
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
