//! Low-water marks keep the claim away from index entries of sent rows, and hide no row for long.

use std::time::{Duration, Instant};

use crate::support::consumer::read_all;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{self, Load, Writers};

#[tokio::test]
async fn rows_put_back_below_the_marks_are_found_by_the_sweep() {
    // A restored row, with an id that was issued before.
    const RESTORED: &str = "
        INSERT INTO app.outbox (id, aggregate_type, aggregate_id, event_type, payload) OVERRIDING SYSTEM VALUE
        VALUES (1, 'order', 'restored', 'Changed', '{}')";
    let outbox = Outbox::create("put_back", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    run(&outbox.client, "ALTER TABLE app.outbox ALTER id RESTART WITH 1000").await;
    let relay = outbox.start_relay().await;
    let load = Load { events: 20_000, ..Load::default() };
    let written = Writers::start(&outbox, &keys, load).await.finish().await;
    outbox.wait_until_drained(STALLED).await;

    let put_back = Instant::now();
    let oldest = "(SELECT id FROM app.outbox ORDER BY id LIMIT 1)";
    run(&outbox.client, &format!("UPDATE app.outbox SET sent_at = NULL WHERE id = {oldest}")).await;
    run(&outbox.client, RESTORED).await;
    wait_until("both rows are published", STALLED, async || outbox.unsent().await == 0).await;
    println!("rows put back: published after {:.1?}", put_back.elapsed());
    let records = read_all(&outbox.topics()).await;
    assert_eq!(records.len(), written + 2);
    assert_eq!(records.iter().filter(|r| r.key.as_deref() == Some(b"restored")).count(), 1);
    drop(relay);
    outbox.drop().await;
}

const BELOW_ONE: &str = "found below the low-water mark of a lane";
const BELOW_SEVERAL: &str = "marks_reset";

/// Publishes several rounds of events of 300 keys, which are in nearly all lanes. Each round begins when the previous
/// one is sent. Then the ids start again, and more rounds follow. Returns how many times a sweep found events below
/// the mark in one lane, and how many times in several.
async fn rounds_after(test: &str, begin_again: &str) -> (usize, usize) {
    const KEYS: i64 = 300;
    let outbox = Outbox::create(test, 3).await;
    run(&outbox.client, "ALTER TABLE app.outbox ALTER id RESTART WITH 100000").await;
    let mut relay = outbox.start_relay().await;
    let mut number = 0;
    let mut round = async || {
        rows::insert(&outbox, "order", KEYS, number..number + KEYS, Filling::Nothing).await;
        number += KEYS;
        outbox.wait_until_drained(STALLED).await;
    };
    // Long enough for several fences, so that the marks are high.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        round().await;
    }
    run(&outbox.client, begin_again).await;
    let (mut rounds, begun) = (0, Instant::now());
    while rounds < 20 || begun.elapsed() < Duration::from_secs(3) {
        round().await;
        rounds += 1;
    }
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    let log = relay.log();
    outbox.drop().await;
    (log.matches(BELOW_ONE).count(), log.matches(BELOW_SEVERAL).count())
}

#[tokio::test]
async fn events_after_a_truncate_with_restarted_ids_wait_for_no_sweep() {
    let found = rounds_after("ids_truncated", "TRUNCATE app.outbox RESTART IDENTITY").await;
    assert_eq!(found, (0, 0));
}

#[tokio::test]
async fn events_in_a_table_that_replaces_the_outbox_wait_for_no_sweep() {
    let renamed = "BEGIN;
                   ALTER TABLE app.outbox RENAME TO outbox_before;
                   CREATE TABLE app.outbox (LIKE app.outbox_before INCLUDING ALL);
                   GRANT ALL ON app.outbox TO PUBLIC;
                   COMMIT";
    assert_eq!(rounds_after("ids_renamed", renamed).await, (0, 0));
}

#[tokio::test]
async fn events_below_the_marks_after_a_restarted_sequence_wait_for_one_sweep() {
    let restarted = "DELETE FROM app.outbox; ALTER TABLE app.outbox ALTER id RESTART WITH 1";
    assert_eq!(rounds_after("ids_restarted", restarted).await, (0, 1));
}

#[tokio::test]
async fn one_very_large_id_makes_other_events_wait_for_one_sweep() {
    let large = "WITH event AS (
                     INSERT INTO app.outbox (id, aggregate_type, aggregate_id, event_type, payload)
                     OVERRIDING SYSTEM VALUE
                     VALUES (1000000000000000, 'order', 'large', 'Changed', '{\"seq\":1}')
                     RETURNING event_id, aggregate_type, aggregate_id, payload
                 )
                 INSERT INTO app.ledger (event_id, kind, key, seq, value)
                 SELECT event_id, aggregate_type, aggregate_id, 1, payload::text FROM event";
    let (one, several) = rounds_after("ids_large", large).await;
    // On a busy server a sweep reads few lanes at a time, so the first part of it may find events in a single lane.
    assert!(one <= 1 && several == 1, "one lane: {one} times, several lanes: {several} times");
}

const BATCH: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
                     SELECT 'order', n::text, 'Changed', '{}' FROM generate_series(1, 1000) AS n";

/// Publishes this many rows in batches and some one by one, while a session keeps a transaction open that begins with `open`.
/// Returns how many index entries of the pending index the relay has read per row.
async fn entries_read_per_row(outbox: &Outbox, rows: i64, open: &str, rolled_back: i64) -> f64 {
    const SINGLE_ROWS: i64 = 200;
    // The queries of this test must not count as reads of the relay.
    let no_index = "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off";
    run(&outbox.client, no_index).await;
    let held = outbox.database.connect().await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    run(&held, open).await;
    let is_writer = open.contains("INSERT");
    if is_writer {
        // In its first second the writer keeps the marks low, and the cost depends on the speed of the machine.
        run(&outbox.client, &format!("{BATCH} LIMIT 1")).await;
        wait_until("the fence passes without the writer", STALLED, async || {
            relay.metric("outbox_relay_oldest_writer_seconds").await.unwrap() > 1.1
        })
        .await;
    }
    let begun = Instant::now();
    for _ in 0..rows / 1_000 {
        run(&outbox.client, BATCH).await;
        let gaps = format!("BEGIN; {BATCH} LIMIT {}; ROLLBACK", rolled_back * 1_000 / rows);
        run(&outbox.client, &gaps).await;
    }
    let unsent = if is_writer { "other events are sent" } else { "the events are sent" };
    wait_until(unsent, STALLED, async || outbox.unsent().await == 0).await;
    let by_id = outbox.database.connect().await;
    let is_sent = by_id.prepare("SELECT sent_at IS NOT NULL FROM app.outbox WHERE id = $1").await.unwrap();
    let keys = outbox.add_aggregates("order", 1).await;
    for _ in 0..SINGLE_ROWS {
        let id = writers::write(&by_id, &keys).await[0];
        wait_until("the row is sent", STALLED, async || {
            by_id.query_one(&is_sent, &[&id]).await.unwrap().get(0)
        })
        .await;
    }
    // A connection reports its statistics when it ends.
    assert!(relay.stop().await.success());
    let connected = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND datname = current_database()",
        relay.name
    );
    wait_until("the relay's connections have ended", STALLED, async || outbox.count(&connected).await == 0)
        .await;
    let read = outbox
        .count(
            "SELECT idx_tup_read FROM pg_stat_user_indexes
             WHERE schemaname = 'app' AND indexrelname = 'outbox_pending'",
        )
        .await;
    let per_row = read as f64 / (rows + SINGLE_ROWS) as f64;
    println!("{read} entries of the pending index in {:.0?}: {per_row:.1} per row", begun.elapsed());
    run(&held, "COMMIT").await;
    per_row
}

/// While a snapshot is held, vacuum cannot remove the index entries of sent rows. The test counts what the relay reads
/// from the index.
#[tokio::test]
async fn held_snapshot_does_not_make_the_relay_read_sent_rows_repeatedly() {
    let outbox = Outbox::create("held_snapshot", 6).await;
    let report = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM app.outbox";
    let per_row = entries_read_per_row(&outbox, 300_000, report, 0).await;
    assert!(per_row < 50.0, "{per_row}");
    outbox.drop().await;
}

/// A transaction that has inserted an event also keeps the fence from passing. Other transactions leave more gaps than a flow
/// searches for.
#[tokio::test]
async fn open_writer_costs_no_more_than_a_held_snapshot() {
    let outbox = Outbox::create("held_writer", 6).await;
    let writer = "BEGIN; INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
                         VALUES ('order', 'night-job', 'Begun', '{}')";
    let per_row = entries_read_per_row(&outbox, 100_000, writer, 3_000).await;
    assert!(per_row < 50.0, "{per_row}");
    let mut relay = outbox.start_relay().await;
    wait_until("the writer's event is sent", STALLED, async || outbox.unsent().await == 0).await;
    assert!(relay.stop().await.success());
    outbox.drop().await;
}

/// A relay starts while a key has 60,000 events of a held topic, and another event of the key follows.
#[tokio::test]
async fn event_behind_many_held_ones_is_published_after_a_restart_and_after_the_end_of_another_hold() {
    const ROWS: &str = "
        INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
        SELECT 'held', 'key', 'Changed', '{}' FROM generate_series(1, 60000)";
    const OTHER: &str = "
        INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'key', 'Changed', '{}')";
    let outbox = Outbox::create("many_held", 1).await;
    let hold = |topic: &str| format!("INSERT INTO app.outbox_pause (topic) VALUES ('{topic}')");
    run(&outbox.client, &format!("{ROWS}; {OTHER}; {}; {}", hold(&outbox.topic("held")), hold("other")))
        .await;
    let mut relay = outbox.relay().set("log", "level", "info").start().await;
    wait_until("the event is published", STALLED, async || outbox.unsent_of("order").await == 0).await;
    run(&outbox.client, &format!("DELETE FROM app.outbox_pause WHERE topic = 'other'; {OTHER}")).await;
    wait_until("the second one is published", STALLED, async || outbox.unsent_of("order").await == 0).await;
    assert_eq!(outbox.unsent_of("held").await, 60_000);
    assert!(relay.stop().await.success());
    outbox.drop().await;
}
