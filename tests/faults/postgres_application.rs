//! The impact of a relay on the application: no locks that it waits for, few connections, and no transactions that stay
//! open.

use std::time::{Duration, Instant};

use crate::support::database::run;
use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{self, Load, Writers};
use crate::world::{self, WORKERS};

/// On a machine under load, many more could outlast the claim.
const TRANSACTIONS: u32 = 10;
/// As documented in docs/guarantees.md.
const CONNECTIONS_BESIDE_WORKERS: i64 = 7;
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(3);
/// After the timeout, the relay waits at most 2 s for outstanding reports, and then settles the rest.
const LITTLE_LONGER: Duration = Duration::from_secs(3);

fn behind(outbox: &Outbox, kafka: &Proxy) -> Relay {
    world::relay(outbox).set("kafka", "bootstrap_servers", kafka.address())
}

#[tokio::test]
async fn insert_never_waits_for_a_claim() {
    let outbox = Outbox::create("no_locks", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let mut kafka = Proxy::open().await;
    // One worker, which has looked up the topic before Kafka stalls. A lookup would fail and release the claim.
    let relay = behind(&outbox, &kafka)
        .set("relay", "workers", 1)
        .set("relay", "publish_timeout", "3min")
        .set("relay", "takeover_timeout", "1min") // a relay that has lost Kafka keeps its claim for two thirds of it
        .start()
        .await;
    writers::write(&outbox.client, &keys).await;
    outbox.wait_until_drained(STALLED).await;
    kafka.stall().await;
    writers::write(&outbox.client, &keys).await;
    outbox.wait_until_publishing(&relay).await;

    // The same keys and lanes, and everything that an application may do with its own rows.
    let client = outbox.database.connect().await;
    // The claim stays open for much longer. Autovacuum and a relation that grows have short locks of their own.
    run(&client, "SET lock_timeout = '5s'").await;
    let mut slowest = Duration::ZERO;
    for _ in 0..TRANSACTIONS {
        let begun = Instant::now();
        run(&client, "BEGIN").await;
        writers::write(&client, &keys).await;
        run(&client, "UPDATE app.outbox SET headers = '{}' WHERE sent_at IS NULL").await;
        run(&client, "COMMIT").await;
        slowest = slowest.max(begun.elapsed());
    }
    assert!(outbox.claims().await > 0, "the claim must stay open");
    println!(
        "{TRANSACTIONS} transactions of 100 events during an open claim, the slowest took {slowest:.2?}"
    );
    kafka.resume().await;
    world::verdict(&outbox, &mut [relay], "during an open claim").await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn relay_under_load_opens_no_more_connections_than_documented() {
    let outbox = Outbox::create("connections", 6).await;
    let writers = world::under_load(&outbox).await;
    let relay = world::relay(&outbox).start().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    let mut most = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        most = most.max(outbox.client.query_one(sql, &[&relay.name]).await.unwrap().get::<_, i64>(0));
        tokio::time::sleep(Duration::from_millis(5)).await; // between two checks
    }
    writers.stop().await;
    println!("{WORKERS} workers: at most {most} connections");
    assert!(most > WORKERS as i64, "at least its workers and its scout are connected");
    assert!(most <= WORKERS as i64 + CONNECTIONS_BESIDE_WORKERS, "{most}");
    world::verdict(&outbox, &mut [relay], "connections counted").await.assert_exact();
    outbox.drop().await;
}

/// The age of the relay's oldest transaction.
async fn oldest_transaction(outbox: &Outbox, relay: &RelayProcess) -> Duration {
    let sql = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
               FROM pg_stat_activity WHERE application_name = $1 AND state <> 'idle'";
    let seconds: f64 = outbox.client.query_one(sql, &[&relay.name]).await.unwrap().get(0);
    Duration::from_secs_f64(seconds.max(0.0))
}

#[tokio::test]
async fn no_transaction_stays_open_longer_than_publish_timeout_during_a_kafka_outage() {
    let outbox = Outbox::create("open_for", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let mut kafka = Proxy::open().await;
    let timeout = format!("{}ms", PUBLISH_TIMEOUT.as_millis());
    let relay = behind(&outbox, &kafka).set("relay", "publish_timeout", timeout).start().await;
    let load = Load { writers: 1, pause: Duration::from_millis(20), ..Load::default() };
    let writers = Writers::start(&outbox, &keys, load).await;
    let mut oldest = Duration::ZERO;
    // First Kafka does not answer, then it is not reachable.
    for outage in ["silent", "refusing"] {
        outbox.wait_until_settled(500, STALLED).await;
        outbox.wait_until_publishing(&relay).await;
        if outage == "silent" {
            kafka.stall().await;
        } else {
            kafka.close().await;
        }
        // If some rows were acknowledged just before, the relay notices the outage at its second attempt.
        wait_until("the relay has noticed the outage", STALLED, async || {
            oldest = oldest.max(oldest_transaction(&outbox, &relay).await);
            relay.not_ready().await.is_some() && outbox.claims().await == 0
        })
        .await;
        let noticed = Instant::now();
        while noticed.elapsed() < PUBLISH_TIMEOUT {
            oldest = oldest.max(oldest_transaction(&outbox, &relay).await);
            assert_eq!(outbox.claims().await, 0, "nothing may be claimed while Kafka is unavailable");
            tokio::time::sleep(Duration::from_millis(10)).await; // between two checks
        }
        println!("{outage}: the oldest transaction was open for {oldest:.2?}");
        assert!(oldest < PUBLISH_TIMEOUT + LITTLE_LONGER, "{oldest:?}");
        kafka.resume().await;
    }
    writers.stop().await;
    world::verdict(&outbox, &mut [relay], "Kafka unavailable").await;
    outbox.drop().await;
}
