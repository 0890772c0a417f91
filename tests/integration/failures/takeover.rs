//! Relays that freeze, and connections that end, under load.

use std::time::Duration;

use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers::{Load, Writers};

const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(3);
const WORKERS: usize = 3;
const BATCH_SIZE: usize = 1_000;

const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE application_name = $1 AND datname = current_database()";

fn relay(outbox: &Outbox) -> Relay {
    outbox.relay().set("relay", "takeover_timeout", "3s").set("relay", "workers", WORKERS as i64).set(
        "relay",
        "batch_size",
        BATCH_SIZE as i64,
    )
}

async fn under_load(test: &str) -> (Outbox, Writers) {
    let outbox = Outbox::create(test, 6).await;
    let keys = outbox.add_aggregates("order", 100).await;
    Writers::start(&outbox, &keys, Load { events: 10_000, ..Load::default() }).await.finish().await;
    let load = Load { writers: 2, ..Load::default() };
    let writers = Writers::start(&outbox, &keys, load).await;
    (outbox, writers)
}

#[tokio::test]
async fn frozen_relay_is_replaced_without_reordering() {
    let (outbox, writers) = under_load("frozen").await;
    let mut relays = [relay(&outbox).start().await, relay(&outbox).start().await];
    let freezes = 4;
    for freeze in 0..freezes {
        let victim = &relays[freeze % 2];
        outbox.wait_until_publishing(victim).await;
        victim.freeze();
        // All rows that are unsent now, including those of the frozen relay.
        let highest = outbox.count("SELECT max(id) FROM app.outbox").await;
        let left = format!("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND id <= {highest}");
        let what = "the other relay has taken over";
        let took = wait_until(what, STALLED, async || outbox.count(&left).await == 0).await;
        assert_within(
            &format!("freeze {freeze}: taken over"),
            took,
            TAKEOVER_TIMEOUT + Duration::from_secs(5),
        );
        victim.thaw();
        outbox.wait_until_settled(2_000, STALLED).await;
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    for relay in &mut relays {
        assert!(relay.stop().await.success());
    }
    let report = outbox.check().await;
    println!("{freezes} freezes: {report}");
    assert!(report.assert_sound().duplicates <= freezes * WORKERS * BATCH_SIZE, "{report}");
    outbox.drop().await;
}

#[tokio::test]
async fn terminated_connections_lose_and_repeat_nothing_with_one_relay() {
    let (outbox, writers) = under_load("terminated").await;
    let mut relay = relay(&outbox).start().await;
    let mut terminated = 0;
    for _ in 0..20 {
        outbox.wait_until_publishing(&relay).await;
        let row = outbox.client.query_one(TERMINATE, &[&relay.name]).await.unwrap();
        terminated += row.get::<_, i64>(0);
        outbox.wait_until_settled(1, STALLED).await;
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    println!("{terminated} connections terminated: {report}");
    report.assert_exact();
    outbox.drop().await;
}

/// A fault is one line when it begins and one when it ends, however many connections it breaks.
#[tokio::test]
async fn terminating_all_connections_is_two_lines_in_the_log() {
    const ROUNDS: usize = 4;
    let (outbox, writers) = under_load("two_lines").await;
    let mut relay = relay(&outbox).set("log", "level", "info").start().await;
    let started = relay.log().lines().count();
    let begun = |relay: &RelayProcess| relay.log().matches("postgres unavailable").count();
    let ended = |relay: &RelayProcess| relay.log().matches("postgres available again").count();
    let mut writers = Some(writers);
    for _ in 0..ROUNDS {
        if writers.is_some() {
            outbox.wait_until_publishing(&relay).await;
        }
        let row = outbox.client.query_one(TERMINATE, &[&relay.name]).await.unwrap();
        let terminated: i64 = row.get(0);
        assert!(terminated > 0);
        if let Some(writers) = writers.take() {
            wait_until("the fault is noticed", STALLED, async || begun(&relay) >= 1).await;
            outbox.wait_until_settled(1, STALLED).await;
            writers.stop().await;
        }
        // Enough rows for every worker, so that each of them needs a connection.
        rows::insert(&outbox, "order", 1_000, 0..20_000, Filling::Nothing).await;
        outbox.wait_until_drained(STALLED).await;
        // An idle connection that breaks may be replaced without a fault.
        wait_until("the fault has ended", 3 * STALLED, async || begun(&relay) == ended(&relay)).await;
    }
    let log = relay.log();
    let lines: Vec<&str> = log.lines().skip(started).collect();
    assert!(lines.len() == 2 * begun(&relay) && begun(&relay) <= ROUNDS, "{lines:#?}");
    for line in lines.chunks(2) {
        assert!(line[0].contains(" WARN postgres unavailable, retrying: "), "{}", line[0]);
        assert!(line[1].contains(" INFO postgres available again "), "{}", line[1]);
    }
    println!("{}", lines.join("\n"));
    assert!(relay.stop().await.success());
    outbox.drop().await;
}
