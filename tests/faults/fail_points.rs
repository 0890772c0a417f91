//! Relays that crash or fail at every stage of the cycle. These tests need a build with the feature `fail-points`,
//! which `scripts/test` turns on.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::world::{self, BATCH_SIZE, WORKERS};

const FAIL_POINT: &str = "OUTBOX_RELAY_FAIL_POINT";
const STAGES: [&str; 8] = [
    "lanes-locked",
    "read-sent",
    "between-slices",
    "rows-sent",
    "waiting-for-reports",
    "before-settlement",
    "before-commit",
    "committed",
];
/// The sockets of a killed process close immediately.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);
const BATCH_OF_SLICES: usize = 2_000;
const SIGABRT: i32 = 6;

/// One of three relays under load. It stops at this point the third time that one of its workers reaches it.
async fn relay_at(outbox: &Outbox, point: &str) -> RelayProcess {
    let relay = world::relay(outbox).set_environment(FAIL_POINT, format!("{point}:3"));
    // The batch has several slices, because this point is between two slices.
    let rows = if point == "between-slices" { BATCH_OF_SLICES } else { BATCH_SIZE };
    let mut relay = relay.set("relay", "batch_size", rows as i64).start().await;
    relay.wait_for_log(&format!("fail point {point} reached")).await;
    relay
}

#[tokio::test]
async fn relay_killed_at_any_stage_of_the_cycle_loses_and_reorders_nothing() {
    let mut outbox = Outbox::create("stages", 6).await;
    outbox.create_topic("bulk", 3).await;
    let writers = world::under_load(&outbox).await;
    let mut others = [world::relay(&outbox).start().await, world::relay(&outbox).start().await];
    for stage in STAGES {
        if stage == "between-slices" {
            // Otherwise the others would leave no batch of this size, and each worker begins with one slice.
            others.iter().for_each(RelayProcess::freeze);
            rows::insert(&outbox, "bulk", 1_000, 0..16_000, Filling::Nothing).await;
        }
        let mut victim = relay_at(&outbox, stage).await;
        others.iter().for_each(RelayProcess::thaw);
        let pids = "SELECT count(*) FROM pg_stat_activity JOIN pg_locks USING (pid)
                    WHERE application_name = $1 AND relation = 'app.outbox_lane'::regclass";
        let held: i64 = outbox.client.query_one(pids, &[&victim.name]).await.unwrap().get(0);
        assert!(held > 0 || stage == "committed", "{stage}: the relay holds no lane");
        let highest = outbox.count("SELECT max(id) FROM app.outbox").await;
        let killed = Instant::now();
        victim.kill();
        let released = wait_until("the lanes of the relay are free", STALLED, async || {
            outbox.client.query_one(pids, &[&victim.name]).await.unwrap().get::<_, i64>(0) == 0
        })
        .await;
        let left = format!("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND id <= {highest}");
        wait_until("the rows that it had claimed are sent", STALLED, async || outbox.count(&left).await == 0)
            .await;
        assert_within(&format!("killed at {stage}: lanes free"), released, RELEASED_WITHIN);
        assert_within(&format!("killed at {stage}: taken over"), killed.elapsed(), world::RESUMED_WITHIN);
    }
    writers.stop().await;
    let report = world::verdict(&outbox, &mut others, "killed at every stage").await;
    let in_flight_most = (STAGES.len() + others.len()) * WORKERS * BATCH_SIZE + WORKERS * BATCH_OF_SLICES;
    assert!(report.duplicates <= in_flight_most, "{report}");
    outbox.drop().await;
}

/// What a flow has recorded before its settlement takes effect only with its COMMIT.
#[tokio::test]
async fn relay_killed_in_a_flow_sends_again_what_it_had_recorded() {
    let outbox = Outbox::create("recorded", 3).await;
    let relay = outbox.relay().set_environment(FAIL_POINT, "recorded").set("relay", "workers", 1);
    // Long enough for many inserts, even on a busy machine.
    let mut victim = relay.set("relay", "flow_window", "10s").start().await;
    // The first rows wait for Kafka's session, longer than it takes to insert the others if the broker has just started.
    let mut rows = 10;
    rows::insert(&outbox, "order", 50, 0..rows, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    // Without pauses, because the rows of a flow follow each other within milliseconds.
    let begun = Instant::now();
    while !victim.log().contains("fail point recorded reached") {
        rows::insert(&outbox, "order", 50, rows..rows + 10, Filling::Nothing).await;
        rows += 10;
        assert!(begun.elapsed() < STALLED, "no flow has recorded rows: {}", victim.log());
    }
    let settled = outbox.settled().await;
    victim.kill();
    let mut next = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(next.stop().await.success());
    let report = outbox.check().await;
    assert!(report.lost.is_empty() && report.reordered.is_empty(), "{report}");
    let unsettled = rows as usize - settled as usize;
    assert!((64..=unsettled).contains(&report.duplicates), "{settled} rows were settled: {report}");
    outbox.drop().await;
}

/// In every build, a panic in one task ends the process immediately. No part of it stays alive.
#[tokio::test]
async fn panic_in_any_task_ends_the_process_immediately() {
    let outbox = Outbox::create("panics", 6).await;
    let writers = world::under_load(&outbox).await;
    for point in ["before-settlement", "scouting", "probing-holds", "answering-health"] {
        let relay = world::relay(&outbox).set_environment(FAIL_POINT, format!("{point}:1:panic"));
        let mut relay = relay.spawn(&["run"]);
        if point == "answering-health" {
            relay.wait_for_log("relay started").await;
            assert!(relay.try_readiness().await.is_err(), "it still answers");
        }
        let status = relay.ended().await;
        println!("panic at {point}: {status}");
        assert_eq!(status.signal(), Some(SIGABRT), "{status}: {}", relay.log());
        let log = relay.log();
        let said = log.lines().filter(|line| line.contains("internal error, aborting"));
        assert_eq!(said.count(), 1, "{log}");
        assert!(log.contains(&format!("fail point {point} panics")), "{log}");
    }
    writers.stop().await;
    let sound = world::relay(&outbox).start().await;
    let report = world::verdict(&outbox, &mut [sound], "after panics").await;
    assert!(report.duplicates <= WORKERS * BATCH_SIZE * 4, "{report}");
    outbox.drop().await;
}

/// Opening a session takes time and may fail. Meanwhile, the lanes are free for other relays.
#[tokio::test]
async fn relay_that_opens_a_session_has_claimed_nothing() {
    let outbox = Outbox::create("opening", 3).await;
    rows::insert(&outbox, "order", 100, 0..1_000, Filling::Nothing).await;
    let relay = outbox.relay().set_environment(FAIL_POINT, "opening-session").set("relay", "workers", 1);
    let mut opening = relay.start().await;
    opening.wait_for_log("fail point opening-session reached").await;
    assert_eq!(outbox.held_open(&opening).await, 0);
    let mut other = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert_eq!(outbox.held_open(&opening).await, 0);
    opening.kill();
    assert!(other.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}
