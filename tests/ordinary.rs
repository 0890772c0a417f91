//! Without a fault: what is committed is published once, in order, and nothing else.

use std::time::Duration;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::writers::{self, Load, Writers};

const STALLED: Duration = Duration::from_secs(30);

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
    // A savepoint is rolled back inside a transaction that commits, and a connection ends without a word.
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

/// Three relays, rows before they start and while they run.
async fn each_event_once_in_order(test: &str, keys: usize) {
    let outbox = Outbox::create(test, 12).await;
    let keys = outbox.add_aggregates("order", keys).await;
    let load = |events| Load { events, ..Load::default() };
    Writers::start(&outbox, &keys, load(30_000)).await.finish().await;
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(outbox.start_relay().await);
    }
    Writers::start(&outbox, &keys, load(70_000)).await.finish().await;
    outbox.wait_until_drained(STALLED).await;
    for relay in &mut relays {
        assert!(relay.stop().await.success());
    }
    let report = outbox.check().await;
    println!("{} keys, three relays: {report}", keys.len());
    assert!(report.assert_exact().committed >= 100_000);
    outbox.drop().await;
}

#[tokio::test]
async fn three_relays_publish_100_000_events_of_1_000_keys_once_and_in_order() {
    each_event_once_in_order("1000_keys", 1_000).await;
}

#[tokio::test]
async fn three_relays_publish_100_000_events_of_100_keys_once_and_in_order() {
    each_event_once_in_order("100_keys", 100).await;
}
