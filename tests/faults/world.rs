//! What the tests in this folder share: a load that continues during the fault, relays with short timeouts, and the
//! verdict.

use std::time::{Duration, Instant};

use crate::support::checker::Report;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::PostgresServer;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers::{Load, Writers};

/// Publishing must resume within this time after the end of a fault.
pub const RESUMED_WITHIN: Duration = Duration::from_secs(5);
pub const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(3);
pub const WORKERS: usize = 3;
pub const BATCH_SIZE: usize = 500;

/// The timeout plus the time that a busy machine takes to notice it. TCP checks its own timeout when it probes a full
/// window, at growing intervals.
const RELEASED_WITHIN: Duration = TAKEOVER_TIMEOUT.saturating_add(Duration::from_secs(2));
/// The time until another relay has claimed the lanes and sent their rows.
const TAKEN_OVER_WITHIN: Duration = RELEASED_WITHIN.saturating_add(RESUMED_WITHIN);
/// The first log line of a PostgreSQL outage.
pub const FAILS: &str = "postgres unavailable, retrying: ";

const KEYS: usize = 100;

/// Few keys with a backlog each, and writers that continue while the server is unavailable. Rows in flight therefore
/// have successors that could overtake them.
pub async fn under_load(outbox: &Outbox) -> Writers {
    let keys = outbox.add_aggregates("order", KEYS).await;
    Writers::start(outbox, &keys, Load { events: 5_000, ..Load::default() }).await.finish().await;
    let load =
        Load { writers: 2, survives_outages: true, pause: Duration::from_millis(5), ..Load::default() };
    Writers::start(outbox, &keys, load).await
}

/// A private server with an outbox under load.
pub async fn server_under_load(test: &str, settings: &[(&str, &str)]) -> (PostgresServer, Outbox, Writers) {
    let server = PostgresServer::start(settings).await;
    let outbox = Outbox::create_on(&server, test, 6).await;
    let writers = under_load(&outbox).await;
    (server, outbox, writers)
}

pub fn relay(outbox: &Outbox) -> Relay {
    let takeover_timeout = format!("{}ms", TAKEOVER_TIMEOUT.as_millis());
    outbox
        .relay()
        .set("relay", "takeover_timeout", takeover_timeout)
        .set("relay", "workers", WORKERS as i64)
        .set("relay", "batch_size", BATCH_SIZE as i64)
        .set("admin", "listen", "127.0.0.1:0")
}

/// A relay for tests that count duplicates while Kafka works. It does not mistake a broker on a busy machine for a
/// stuck one.
pub fn patient_with_kafka(outbox: &Outbox) -> Relay {
    relay(outbox).set("relay", "publish_timeout", "3min")
}

/// Waits until rows are settled again, and returns how long that took.
pub async fn resumed(outbox: &Outbox, what: &str, since: Instant) -> Duration {
    outbox.wait_until_settled(1, STALLED).await;
    let took = since.elapsed();
    assert_within(&format!("{what}: rows are settled again"), took, RESUMED_WITHIN);
    took
}

/// The end of every test: all committed rows are settled, the relays end correctly, nothing is lost, invented or out of
/// order, and there are no dead letters.
pub async fn verdict(outbox: &Outbox, relays: &mut [RelayProcess], what: &str) -> Report {
    outbox.wait_until_drained(STALLED).await;
    for relay in relays {
        let status = relay.stop().await;
        assert!(status.success(), "{status}");
    }
    let report = outbox.check().await;
    let dead_letters = outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await;
    println!("{what}: dead letters {dead_letters}, {report}");
    report.assert_sound();
    assert_eq!(dead_letters, 0);
    report
}

/// Waits until the log shows exactly this many outages of PostgreSQL, all of which have ended.
pub async fn wait_for_outages(relay: &RelayProcess, times: usize) {
    let count = |text: &str| relay.log().matches(text).count();
    wait_until(&format!("{times} outages have begun and ended in the log"), STALLED, async || {
        count("postgres available again") == times
    })
    .await;
    assert_eq!(count(FAILS), times, "{}", relay.log());
}

/// Waits until this relay holds no lane and all rows that are unsent now have been sent by any relay. Fails the test if
/// either takes too long.
pub async fn assert_replaced(outbox: &Outbox, relay: &RelayProcess, what: &str) {
    let begun = Instant::now();
    let held = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
                WHERE application_name = $1 AND backend_start < $2
                AND relation = 'app.outbox_lane'::regclass AND mode = 'RowShareLock'";
    let now = outbox.client.query_one("SELECT now()", &[]).await.unwrap();
    let now: std::time::SystemTime = now.get(0);
    let released = wait_until("the lanes of the relay are free", STALLED, async || {
        outbox.client.query_one(held, &[&relay.name, &now]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    let highest = outbox.count("SELECT max(id) FROM app.outbox").await;
    let left = format!("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND id <= {highest}");
    wait_until("another relay has taken over", STALLED, async || outbox.count(&left).await == 0).await;
    let took = begun.elapsed();
    assert_within(&format!("{what}: lanes free"), released, RELEASED_WITHIN);
    assert_within(&format!("{what}: taken over"), took, TAKEN_OVER_WITHIN);
}
