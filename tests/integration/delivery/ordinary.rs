//! Without faults, committed events are published once and in order, and nothing else is published.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

use crate::support::consumer::Reader;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, assert_within};
use crate::support::writers::{self, Load, Writers};

#[tokio::test]
async fn rolled_back_transactions_publish_nothing() {
    let outbox = Outbox::create("rollback", 3).await;
    let keys = outbox.add_aggregates("order", 50).await;
    let mut relay = outbox.start_relay().await;

    let writer = outbox.database.connect().await;
    for round in 0..20 {
        run(&writer, "BEGIN").await;
        writers::write(&writer, &keys).await;
        run(&writer, if round % 2 == 0 { "ROLLBACK" } else { "COMMIT" }).await;
    }
    // A savepoint is rolled back in a transaction that commits, and a connection ends with an open transaction.
    run(&writer, "BEGIN; SAVEPOINT before").await;
    writers::write(&writer, &keys).await;
    run(&writer, "ROLLBACK TO before").await;
    writers::write(&writer, &keys[..1]).await;
    run(&writer, "COMMIT; BEGIN").await;
    writers::write(&writer, &keys).await;
    drop(writer);

    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    println!("{report}");
    assert_eq!(report.assert_exact().committed, 10 * 50 + 1);
    outbox.drop().await;
}

/// Three relays, with rows that are inserted before they start and while they run, at least until each of them has published.
async fn each_event_once_in_order(test: &str, keys: usize, events: usize, on_sent: &str) {
    let outbox = Outbox::create(test, 12).await;
    let keys = outbox.add_aggregates("order", keys).await;
    let load = |events| Load { events, ..Load::default() };
    Writers::start(&outbox, &keys, load(events * 3 / 10)).await.finish().await;
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(outbox.relay().set("outbox", "on_sent", on_sent).start().await);
    }
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    for relay in &relays {
        outbox.wait_until_publishing(relay).await;
    }
    writers.stop().await;
    Writers::start(&outbox, &keys, load(events * 7 / 10)).await.finish().await;
    outbox.wait_until_drained(STALLED).await;
    for relay in &mut relays {
        assert!(relay.stop().await.success());
    }
    let report = outbox.check().await;
    println!("{} keys, three relays, {on_sent}: {report}", keys.len());
    assert!(report.assert_exact().committed >= events);
    let left = if on_sent == "delete" { 0 } else { report.committed as i64 };
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox").await, left);
    outbox.drop().await;
}

#[tokio::test]
async fn three_relays_publish_100_000_events_of_1_000_keys_once_and_in_order() {
    each_event_once_in_order("1000_keys", 1_000, 100_000, "mark").await;
}

#[tokio::test]
async fn three_relays_publish_100_000_events_of_100_keys_once_and_in_order() {
    each_event_once_in_order("100_keys", 100, 100_000, "mark").await;
}

#[tokio::test]
async fn three_relays_that_delete_publish_each_event_once_and_in_order() {
    each_event_once_in_order("delete", 100, 20_000, "delete").await;
}

/// The time from the answer to COMMIT until a consumer has the record, at default settings, with pauses in which the
/// relay becomes idle.
#[tokio::test]
async fn median_latency_of_100_inserts_is_below_100_ms() {
    const INSERT: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
                          VALUES ('order', '42', 'OrderPlaced', '{}') RETURNING event_id";
    let outbox = Outbox::create("latency", 3).await;
    let mut relay = outbox.start_relay().await;
    let topics = outbox.topics();
    let consumer = tokio::task::spawn_blocking(move || {
        let mut arrived = HashMap::new();
        Reader::new(&topics).until("100 records", STALLED, |records| {
            if let Some(record) = records.last() {
                arrived.entry(record.event_id().unwrap()).or_insert_with(Instant::now);
            }
            arrived.len() == 100
        });
        arrived
    });
    let mut random = fastrand::Rng::with_seed(11);
    let mut committed = Vec::new();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(random.u64(..250))).await;
        let event_id: Uuid = outbox.client.query_one(INSERT, &[]).await.unwrap().get(0);
        committed.push((event_id, Instant::now()));
    }
    let arrived = consumer.await.unwrap();
    let took = |(event_id, at): &(Uuid, Instant)| arrived[event_id].saturating_duration_since(*at);
    let mut took: Vec<Duration> = committed.iter().map(took).collect();
    took.sort();
    println!("commit to consumer: median {:?}, p90 {:?}, most {:?}", took[50], took[90], took[99]);
    assert_within("median from commit to consumer", took[50], Duration::from_millis(100));
    assert!(relay.stop().await.success());
    outbox.drop().await;
}
