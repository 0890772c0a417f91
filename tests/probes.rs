//! Probes of held topics that come to nothing, because the relay that makes them dies or loses Postgres.

use std::time::{Duration, Instant};

use crate::support::kafka_proxy::{Action, Proxy};
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::wait_until;

const STALLED: Duration = Duration::from_secs(60);
/// A topic that is handed to one relay for a probe is given to another one after 10 s.
const AFTER_DEATH: Duration = Duration::from_secs(15);
/// The same relay probes again as soon as it has a connection.
const AFTER_FAULT: Duration = Duration::from_secs(8);

fn relay(outbox: &Outbox, kafka: &Proxy) -> Relay {
    // A claim gives a sign of life every third of this time, by which the test sees that it waits for Kafka.
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.address());
    relay.set("relay", "takeover_timeout", "1s").set("relay", "publish_timeout", "60s")
}

/// A held topic to which nothing can be written, and a relay that waits for the answer to a probe.
async fn in_mid_probe(test: &str) -> (Outbox, Proxy, RelayProcess) {
    let outbox = Outbox::create(test, 1).await;
    let hold = "INSERT INTO app.outbox_hold (topic, reason, error) VALUES ($1, 'stuck', 'for the test')";
    outbox.client.execute(hold, &[&outbox.topic("order")]).await.unwrap();
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    let kafka = Proxy::open().await;
    kafka.act(|_| Action::Hold);
    let relay = relay(&outbox, &kafka).start().await;
    wait_until("a probe waits for Kafka", STALLED, async || outbox.waiting_claims().await > 0).await;
    (outbox, kafka, relay)
}

/// The topic works from now on; returns how long its rows needed.
async fn mend(outbox: &Outbox, kafka: &Proxy) -> Duration {
    kafka.release();
    let begun = Instant::now();
    outbox.wait_until_drained(STALLED).await;
    begun.elapsed()
}

#[tokio::test]
async fn a_relay_killed_in_mid_probe_delays_the_topic_for_seconds() {
    let (outbox, kafka, mut first) = in_mid_probe("probe_kill").await;
    first.kill();
    let mut second = relay(&outbox, &kafka).start().await;
    let took = mend(&outbox, &kafka).await;
    println!("the topic's rows were sent {took:.1?} after it worked again");
    assert!(took < AFTER_DEATH, "{took:?}");
    assert!(second.stop().await.success());
    outbox.check().await.assert_sound();
    outbox.drop().await;
}

#[tokio::test]
async fn a_connection_lost_in_mid_probe_delays_the_topic_for_seconds() {
    let (outbox, kafka, mut relay) = in_mid_probe("probe_cut").await;
    assert_eq!(outbox.end_waiting_claims().await, 1);
    let took = mend(&outbox, &kafka).await;
    println!("the topic's rows were sent {took:.1?} after it worked again");
    assert!(took < AFTER_FAULT, "{took:?}");
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    // The row of the probe is remembered, though claims do not read it while its topic is held.
    report.assert_exact();
    outbox.drop().await;
}
