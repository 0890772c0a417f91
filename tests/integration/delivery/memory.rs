//! Memory is bounded by the batches, not by the backlog or the size of rows.

use std::time::Instant;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use crate::support::topics;
use crate::support::wait::{STALLED, wait_until};

const MIB: u64 = 1 << 20;

async fn drain(outbox: &Outbox, relay: &mut RelayProcess, rows: i64) -> u64 {
    let begun = Instant::now();
    // Counting the rows themselves would take longer than relaying them.
    let topic = outbox.topic("order");
    let mut stored = 0;
    while stored < rows {
        wait_until(&format!("more than {stored} records are stored"), STALLED, async || {
            topics::stored(&topic) > stored
        })
        .await;
        stored = topics::stored(&topic);
    }
    outbox.wait_until_drained(STALLED).await;
    let resident = relay.resident_max();
    println!("{rows} rows: drained in {:?}, {} MiB resident at most", begun.elapsed(), resident / MIB);
    assert!(relay.stop().await.success());
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
    resident
}

#[tokio::test]
async fn a_million_rows_of_1_kib_need_less_than_128_mib() {
    const ROWS: i64 = 1_000_000;
    let outbox = Outbox::create("million", 12).await;
    let begun = Instant::now();
    let insert = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', 'order-' || n % 10000, 'Numbered', to_json(repeat(md5(n::text), 32))
         FROM generate_series(1, {ROWS}) AS n"
    );
    run(&outbox.client, &insert).await;
    println!("inserted in {:?}", begun.elapsed());
    let mut relay = outbox.start_relay().await;
    let resident = drain(&outbox, &mut relay, ROWS).await;
    assert!(resident < 128 * MIB, "{resident}");
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox WHERE sent_at IS NOT NULL").await, ROWS);
    outbox.drop().await;
}

#[tokio::test]
async fn rows_of_1_mb_need_less_than_256_mib() {
    let mut outbox = Outbox::without_topics("megabytes").await;
    outbox.create_topic_with("order", 3, &[("max.message.bytes", "2097152")]).await;
    // Without compression, so that inserting them takes less time.
    let uncompressed = "ALTER TABLE app.outbox ALTER payload SET STORAGE EXTERNAL;
                        ALTER TABLE app.ledger ALTER value SET STORAGE EXTERNAL";
    run(&outbox.client, uncompressed).await;
    let begun = Instant::now();
    for block in 0..5 {
        let numbers = block * 100..(block + 1) * 100;
        rows::insert(&outbox, "order", 50, numbers, Filling::Random(1_048_000)).await;
    }
    println!("inserted in {:?}", begun.elapsed());
    let mut relay = outbox.relay().set_kafka_property("message.max.bytes", "2000000").start().await;
    let resident = drain(&outbox, &mut relay, 500).await;
    assert!(resident < 256 * MIB, "{resident}");
    println!("{}", outbox.check().await.assert_exact());
    outbox.drop().await;
}
