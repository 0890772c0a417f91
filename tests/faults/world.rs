//! What the tests here have in common: a load that goes on through the fault, relays with short timeouts, and the verdict.

use std::time::{Duration, Instant};

use crate::support::checker::Report;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::PostgresServer;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::wait_until;
use crate::support::writers::{Load, Writers};

/// No test waits longer for progress.
pub const STALLED: Duration = Duration::from_secs(40);
/// After a fault has ended, rows have to flow again.
pub const RESUMED_WITHIN: Duration = Duration::from_secs(5);
pub const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(3);
pub const WORKERS: usize = 3;
pub const BATCH_SIZE: usize = 500;

const KEYS: usize = 100;

/// Few keys, a backlog in front of each, and writers that go on while the server is away: what is in flight has
/// successors, which could pass it.
pub async fn under_load(outbox: &Outbox) -> Writers {
    let keys = outbox.add_aggregates("order", KEYS).await;
    Writers::start(outbox, &keys, Load { events: 5_000, ..Load::default() }).await.finish().await;
    let load =
        Load { writers: 2, outlast_the_server: true, pause: Duration::from_millis(5), ..Load::default() };
    Writers::start(outbox, &keys, load).await
}

/// A server of the test's own with an outbox under load.
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

/// Waits until rows are settled again, and says how long that took.
pub async fn resumed(outbox: &Outbox, what: &str, since: Instant) -> Duration {
    outbox.wait_until_settled(1, STALLED).await;
    let took = since.elapsed();
    println!("{what}: rows are settled again after {took:.2?}");
    assert!(took < RESUMED_WITHIN, "{what}: {took:?}");
    took
}

/// The end of every test: all that was committed is settled, the relays end in order, nothing is lost, invented or out of
/// order, and nothing became a dead letter.
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

/// Waits until nothing but this is true of the log: an outage of Postgres began once for each time it ended, so often.
pub async fn wait_for_outages(relay: &RelayProcess, times: usize) {
    let count = |text: &str| relay.log().matches(text).count();
    wait_until(&format!("{times} outages have begun and ended in the log"), STALLED, async || {
        count("Postgres works again") == times
    })
    .await;
    assert_eq!(count("Postgres fails, nothing is lost"), times, "{}", relay.log());
}
