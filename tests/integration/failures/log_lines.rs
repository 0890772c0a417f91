//! A repeated fault is one log line when it begins and one when it ends.

use crate::support::database::run;
use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

/// The log at the default level, without the lines of every start and end.
fn lines(relay: &RelayProcess) -> Vec<String> {
    let log = relay.log();
    let seen = log.lines().filter(|line| !line.contains(" DEBUG "));
    let ordinary = |line: &&str| {
        ["relay started", "serving metrics", "shutdown requested", "relay stopped"]
            .iter()
            .all(|text| !line.contains(text))
    };
    seen.filter(ordinary).map(str::to_owned).collect()
}

/// Each line contains all of its words.
fn assert_lines(relay: &RelayProcess, expected: &[&[&str]]) {
    let lines = lines(relay);
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, words) in lines.iter().zip(expected) {
        for word in *words {
            assert!(line.contains(word), "{word:?} is missing in {line}");
        }
    }
}

#[tokio::test]
async fn consecutive_refused_events_are_a_few_lines() {
    let outbox = Outbox::without_topics("refused_lines").await;
    let mut relay = outbox.relay().set("outbox", "rejections_before_hold", 100).start().await;
    for batch in 0..3 {
        // Kafka does not allow a topic of this name.
        rows::insert(&outbox, "a b", 10, batch * 10..(batch + 1) * 10, Filling::Nothing).await;
        let all = (batch + 1) * 10;
        wait_until("the events are dead letters", STALLED, async || outbox.dead_letters().await == all).await;
    }
    assert!(relay.stop().await.success());
    assert_lines(
        &relay,
        &[
            &[" WARN ", "event rejected", "Fix: "],
            &[" WARN ", "events rejected for the same reason", "code=\"rejections_continue\"", "events=10"],
            &[" INFO ", "run of rejected events ended", "code=\"rejections_ended\"", "events=30", "seconds="],
        ],
    );
    outbox.drop().await;
}

#[tokio::test]
async fn topic_that_every_worker_finds_missing_is_two_lines() {
    let mut outbox = Outbox::without_topics("held_lines").await;
    let mut relay = outbox.start_relay().await;
    rows::insert(&outbox, "order", 1_000, 0..5_000, Filling::Nothing).await;
    relay.wait_for_log("topic held").await;
    rows::insert(&outbox, "order", 1_000, 5_000..10_000, Filling::Nothing).await;
    wait_until("a probe has failed", STALLED, async || {
        outbox.count("SELECT count(*) FROM app.outbox_hold WHERE probes > 0").await == 1
    })
    .await;
    outbox.create_topic("order", 3).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_lines(
        &relay,
        &[
            &[" WARN ", "topic held", "Fix: "],
            &[" INFO ", "topic released, publishing resumed", "code=\"topic_released\"", "seconds="],
        ],
    );
    outbox.drop().await;
}

#[tokio::test]
async fn repeated_kafka_failures_are_two_lines() {
    let outbox = Outbox::create("kafka_lines", 3).await;
    let mut kafka = Proxy::closed();
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.address());
    let mut relay = relay.start().await;
    wait_until("five attempts have failed", STALLED, async || {
        relay.log().matches("kafka still unavailable").count() >= 5
    })
    .await;
    kafka.resume().await;
    relay.wait_for_log("kafka available again").await;
    assert!(relay.stop().await.success());
    assert_lines(
        &relay,
        &[
            &[" WARN ", "kafka unavailable, retrying: ", "Fix: "],
            &[" INFO ", "kafka available again", "failed_attempts=", "seconds="],
        ],
    );
    outbox.drop().await;
}

#[tokio::test]
async fn row_that_stays_locked_is_two_lines() {
    let outbox = Outbox::create("lock_lines", 3).await;
    rows::insert(&outbox, "order", 10, 0..10, Filling::Nothing).await;
    let operator = outbox.database.connect().await;
    run(&operator, "BEGIN; UPDATE app.outbox SET headers = NULL WHERE id = (SELECT min(id) FROM app.outbox)")
        .await;
    let mut relay = outbox.start_relay().await;
    relay.wait_for_log("rows locked, retrying: ").await;
    let failed = || relay.log().matches("rows still locked").count();
    let before = failed();
    wait_until("two more attempts have failed", STALLED, async || failed() >= before + 2).await;
    assert_eq!(outbox.unsent().await, 1);
    run(&operator, "ROLLBACK").await;
    outbox.wait_until_drained(STALLED).await;
    relay.wait_for_log("rows no longer locked").await;
    assert!(relay.stop().await.success());
    assert_lines(
        &relay,
        &[
            &[" WARN ", "Another session has locked the outbox", "docs/runbook.md"],
            &[" INFO ", "rows no longer locked", "failed_attempts=", "seconds="],
        ],
    );
    outbox.drop().await;
}
