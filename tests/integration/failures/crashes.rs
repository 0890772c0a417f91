//! Relays that crash during a batch or get SIGTERM. Nothing is lost, and first occurrences stay in order.

use rdkafka::mocking::MockCluster;
use rustix::process::Signal;
use std::time::Duration;

use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{self, Load, Writers};

const WORKERS: usize = 3;
const BATCH_SIZE: usize = 1_000;
const KILLS: usize = 15;

/// Few keys with a backlog each, so that rows in flight have successors that could overtake them.
async fn outbox_with_backlog(test: &str) -> (Outbox, Writers) {
    let outbox = Outbox::create(test, 6).await;
    let keys = outbox.add_aggregates("order", 100).await;
    Writers::start(&outbox, &keys, Load { events: 20_000, ..Load::default() }).await.finish().await;
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    (outbox, writers)
}

fn relay(outbox: &Outbox, on_sent: &str) -> Relay {
    outbox
        .relay()
        .set("relay", "workers", WORKERS as i64)
        .set("relay", "batch_size", BATCH_SIZE as i64)
        .set("outbox", "on_sent", on_sent)
}

/// Kills the relay repeatedly during a batch. Another relay runs at the same time, or starts only after the kill.
async fn killed_during_a_batch(test: &str, replicas: usize, on_sent: &str) {
    let (outbox, writers) = outbox_with_backlog(test).await;
    let mut relays = Vec::new();
    for _ in 0..replicas {
        relays.push(relay(&outbox, on_sent).start().await);
    }
    let mut random = fastrand::Rng::with_seed(9);
    for kill in 0..KILLS {
        let victim = kill % replicas;
        // Under full load, because a relay that has just started waits for its producers.
        outbox.wait_until_settled(random.i64(500..3_000), STALLED).await;
        outbox.wait_until_publishing(&relays[victim]).await;
        relays[victim].kill();
        relays[victim] = relay(&outbox, on_sent).start().await;
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    for mut relay in relays {
        assert!(relay.stop().await.success());
    }

    let report = outbox.check().await;
    let in_flight_most = KILLS * WORKERS * BATCH_SIZE;
    println!(
        "{replicas} relays, {on_sent}, {KILLS} kills, at most {in_flight_most} rows in flight: {report}"
    );
    report.assert_sound();
    assert!(report.duplicates <= in_flight_most, "{report}");
    assert!(report.duplicates > 0, "no kill hit a batch in flight, so the run was not conclusive");
    outbox.drop().await;
}

#[tokio::test]
async fn relay_killed_during_a_batch_loses_and_reorders_nothing() {
    killed_during_a_batch("kill_alone", 1, "mark").await;
}

#[tokio::test]
async fn relay_killed_next_to_another_one_loses_and_reorders_nothing() {
    killed_during_a_batch("kill_beside", 2, "mark").await;
}

#[tokio::test]
async fn relay_that_deletes_rows_killed_during_a_batch_loses_and_reorders_nothing() {
    killed_during_a_batch("kill_delete", 2, "delete").await;
}

#[tokio::test]
async fn sigterm_under_load_ends_with_0_and_causes_no_duplicates() {
    let (outbox, writers) = outbox_with_backlog("sigterm").await;
    for _ in 0..8 {
        let mut relay = relay(&outbox, "mark").start().await;
        outbox.wait_until_settled(1_000, STALLED).await;
        outbox.wait_until_publishing(&relay).await;
        let status = relay.stop().await;
        assert_eq!(status.code(), Some(0), "{status}");
    }
    writers.stop().await;
    assert!(outbox.unsent().await > 0, "the relays had finished before SIGTERM");
    let mut last = relay(&outbox, "mark").start().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(last.stop().await.success());
    let report = outbox.check().await;
    println!("8 times SIGTERM: {report}");
    report.assert_exact();
    outbox.drop().await;
}

/// Uses an in-process cluster, because only that one can be made not to answer.
#[tokio::test]
async fn second_sigterm_ends_immediately() {
    let outbox = Outbox::without_topics("second_sigterm").await;
    let keys = outbox.add_aggregates("order", 1).await;
    let kafka = MockCluster::new(1).unwrap();
    kafka.create_topic(&outbox.topic("order"), 1, 1).unwrap();
    // One worker, so that the second event uses a producer that knows the topic.
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.bootstrap_servers());
    let mut relay = relay.set("relay", "workers", 1).start().await;
    writers::write(&outbox.client, &keys).await;
    outbox.wait_until_drained(STALLED).await;

    kafka.broker_round_trip_time(1, Duration::from_secs(300)).unwrap();
    writers::write(&outbox.client, &keys).await;
    // A claim that has not sent its row yet would give it back.
    wait_until("a claim waits for Kafka", STALLED, async || outbox.waiting_claims().await > 0).await;
    relay.signal(Signal::TERM);
    relay.wait_for_log("shutdown requested, draining").await;
    assert!(relay.is_running(), "the first signal waits for rows in flight");
    let status = relay.stop().await;
    assert_eq!(status.code(), Some(1), "{status}");
    assert_eq!(outbox.unsent().await, 1);
    outbox.drop().await;
}
