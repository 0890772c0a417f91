//! What the application feels of a relay: no lock that it waits for, few connections, no transaction that stays open.

use std::time::{Duration, Instant};

use crate::support::database::run;
use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::wait_until;
use crate::support::writers::{self, Load, Writers};
use crate::world::{self, STALLED, WORKERS};

/// As docs/guarantees.md states.
const CONNECTIONS_BESIDE_WORKERS: i64 = 5;
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(3);
/// After the timeout, reports of what is on its way are waited for, 2 s at most, and the rest is settled.
const LITTLE_LONGER: Duration = Duration::from_secs(3);

fn behind(outbox: &Outbox, kafka: &Proxy) -> Relay {
    world::relay(outbox).set("kafka", "bootstrap_servers", kafka.address())
}

#[tokio::test]
async fn an_insert_never_waits_for_a_claim() {
    let outbox = Outbox::create("no_locks", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let mut kafka = Proxy::open().await;
    let relay = behind(&outbox, &kafka).start().await;
    writers::write(&outbox.client, &keys).await;
    outbox.wait_until_drained(STALLED).await;
    kafka.hold_up().await;
    writers::write(&outbox.client, &keys).await;
    wait_until("a claim waits for Kafka", STALLED, async || outbox.waiting_claims().await > 0).await;

    // The same keys, the same lanes, and whatever an application does with its own rows.
    let client = outbox.database.connect().await;
    run(&client, "SET lock_timeout = '10ms'").await;
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let begun = Instant::now();
        run(&client, "BEGIN").await;
        writers::write(&client, &keys).await;
        run(&client, "UPDATE app.outbox SET headers = '{}' WHERE sent_at IS NULL").await;
        run(&client, "COMMIT").await;
        slowest = slowest.max(begun.elapsed());
    }
    assert!(outbox.waiting_claims().await > 0, "the claim was open all the time");
    println!("50 transactions of 100 events beside an open claim, the slowest took {slowest:.2?}");
    kafka.let_through().await;
    world::verdict(&outbox, &mut [relay], "beside an open claim").await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn a_relay_under_load_has_no_more_connections_than_it_says() {
    let outbox = Outbox::create("connections", 6).await;
    let writers = world::under_load(&outbox).await;
    let relay = world::relay(&outbox).start().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    let mut most = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        most = most.max(outbox.client.query_one(sql, &[&relay.name]).await.unwrap().get::<_, i64>(0));
        tokio::time::sleep(Duration::from_millis(5)).await; // between two looks
    }
    writers.stop().await;
    println!("{WORKERS} workers: at most {most} connections");
    assert!(most > WORKERS as i64, "its workers and its scout");
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
async fn no_transaction_stays_open_for_longer_than_publish_timeout_while_kafka_is_away() {
    let outbox = Outbox::create("open_for", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let mut kafka = Proxy::open().await;
    let timeout = format!("{}ms", PUBLISH_TIMEOUT.as_millis());
    let relay = behind(&outbox, &kafka).set("relay", "publish_timeout", timeout).start().await;
    let load = Load { writers: 1, pause: Duration::from_millis(20), ..Load::default() };
    let writers = Writers::start(&outbox, &keys, load).await;
    let mut oldest = Duration::ZERO;
    // Once it does not answer, once it is not there.
    for away in ["silent", "refusing"] {
        outbox.wait_until_settled(500, STALLED).await;
        outbox.wait_until_publishing(&relay).await;
        if away == "silent" {
            kafka.hold_up().await;
        } else {
            kafka.close().await;
        }
        let begun = Instant::now();
        while begun.elapsed() < PUBLISH_TIMEOUT * 3 {
            oldest = oldest.max(oldest_transaction(&outbox, &relay).await);
            tokio::time::sleep(Duration::from_millis(10)).await; // between two looks
        }
        let now = oldest_transaction(&outbox, &relay).await;
        println!("{away}: the oldest transaction was open for {oldest:.2?}, in the end for {now:.2?}");
        assert!(oldest < PUBLISH_TIMEOUT + LITTLE_LONGER, "{oldest:?}");
        assert_eq!(outbox.claims().await, 0, "nothing is claimed while Kafka is away");
        kafka.let_through().await;
    }
    writers.stop().await;
    world::verdict(&outbox, &mut [relay], "Kafka away").await;
    outbox.drop().await;
}
