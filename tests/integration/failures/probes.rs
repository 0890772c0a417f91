//! Probes of held topics: probes that fail because their relay dies or loses PostgreSQL, probes with late answers, and
//! when probes are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::kafka_proxy::{Action, Proxy};
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};

/// A topic that is leased to one relay for a probe is given to another one after 10 s.
const AFTER_DEATH: Duration = Duration::from_secs(15);
/// The same relay probes again as soon as it has a connection.
const AFTER_FAULT: Duration = Duration::from_secs(8);

fn relay(outbox: &Outbox, kafka: &Proxy) -> Relay {
    outbox.relay().set("kafka", "bootstrap_servers", kafka.address()).set("relay", "publish_timeout", "60s")
}

async fn hold(outbox: &Outbox, probe_at: &str) {
    let hold = format!(
        "INSERT INTO app.outbox_hold (topic, reason, error, probe_at) VALUES ($1, 'stuck', 'for the test', {probe_at})"
    );
    outbox.client.execute(&hold, &[&outbox.topic("order")]).await.unwrap();
}

/// A held topic whose leader answers but stores nothing, and a relay that waits for the answer to a probe.
async fn during_a_probe(test: &str) -> (Outbox, Proxy, RelayProcess) {
    let outbox = Outbox::create(test, 1).await;
    hold(&outbox, "now()").await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    let kafka = Proxy::open().await;
    let (topic, probed) = (outbox.topic("order"), Arc::new(AtomicBool::new(false)));
    let seen = Arc::clone(&probed);
    kafka.act(move |produce| {
        if produce.topic != topic {
            return Action::Pass;
        }
        seen.store(true, Ordering::Release);
        Action::Hold
    });
    let relay = relay(&outbox, &kafka).start().await;
    wait_until("a probe waits for Kafka", STALLED, async || probed.load(Ordering::Acquire)).await;
    (outbox, kafka, relay)
}

/// Makes the topic available. Returns how long its rows needed.
async fn repair(outbox: &Outbox, kafka: &Proxy) -> Duration {
    kafka.release();
    let begun = Instant::now();
    outbox.wait_until_drained(STALLED).await;
    begun.elapsed()
}

#[tokio::test]
async fn relay_killed_during_a_probe_delays_the_topic_for_seconds() {
    let (outbox, kafka, mut first) = during_a_probe("probe_kill").await;
    first.kill();
    let mut second = relay(&outbox, &kafka).start().await;
    let took = repair(&outbox, &kafka).await;
    assert_within("the topic's rows were sent after it was available again", took, AFTER_DEATH);
    assert!(second.stop().await.success());
    outbox.check().await.assert_sound();
    outbox.drop().await;
}

#[tokio::test]
async fn connections_lost_during_a_probe_delay_the_topic_for_seconds() {
    let (outbox, kafka, mut relay) = during_a_probe("probe_cut").await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
    let ended: i64 = outbox.client.query_one(end, &[&relay.name]).await.unwrap().get(0);
    assert!(ended > 0);
    let took = repair(&outbox, &kafka).await;
    assert_within("the topic's rows were sent after it was available again", took, AFTER_FAULT);
    assert!(relay.stop().await.success());
    // The relay keeps the row of the probe in memory, although claims do not read it while its topic is held.
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// The rows of the other topic have the same keys as the stuck ones, so they are in the same lanes.
#[tokio::test]
async fn probe_that_waits_for_its_answer_does_not_delay_other_topics() {
    let (mut outbox, kafka, mut relay) = during_a_probe("probe_late").await;
    outbox.create_topic("other", 1).await;
    let insert = "WITH event AS (
             INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'other', 'order-' || n % 10, 'Numbered', json_build_object('seq', n)
             FROM generate_series(0, 999) AS n ORDER BY n
             RETURNING event_id, aggregate_type, aggregate_id, payload)
         INSERT INTO app.ledger (event_id, kind, key, seq, value)
         SELECT event_id, aggregate_type, aggregate_id, (payload ->> 'seq')::bigint, payload::text FROM event";
    outbox.client.execute(insert, &[]).await.unwrap();
    let took = outbox.wait_until_sent("other", STALLED).await;
    println!("1,000 rows of the same lanes were sent in {took:.2?} while a probe waited");
    assert_eq!(outbox.unsent_of("order").await, 100, "the topic is still stuck");
    // The probe waits for 8 s.
    assert!(took < Duration::from_secs(6), "{took:?}");
    let took = repair(&outbox, &kafka).await;
    println!("the topic's rows were sent {took:.1?} after it was available again");
    assert!(relay.stop().await.success());
    // Rows that were acknowledged late are not sent again.
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// Otherwise another relay would publish it again after the resume, if an operator deletes the hold before.
#[tokio::test]
async fn row_acknowledged_late_is_settled_while_its_topic_is_paused() {
    let (outbox, kafka, mut relay) = during_a_probe("probe_pause").await;
    let lease = "SELECT (extract(epoch FROM probe_at) * 1000000)::bigint FROM app.outbox_hold";
    let first = outbox.count(lease).await;
    // The relay renews the lease only of a probe whose answer is late.
    wait_until("the answer is late", STALLED, async || outbox.count(lease).await != first).await;
    let pause = "INSERT INTO app.outbox_pause (topic) VALUES ($1)";
    outbox.client.execute(pause, &[&outbox.topic("order")]).await.unwrap();
    kafka.release();
    wait_until("the probed row is settled", STALLED, async || outbox.unsent_of("order").await == 99).await;
    outbox.client.execute("DELETE FROM app.outbox_pause", &[]).await.unwrap();
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// As after a change of the server's clock, or a failover to a server whose clock is behind.
#[tokio::test]
async fn probe_that_is_due_in_an_hour_is_made_now() {
    let outbox = Outbox::create("probe_clock", 1).await;
    hold(&outbox, "now() + interval '1 hour'").await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}
