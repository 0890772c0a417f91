//! Topics that start to refuse records. Only bad rows become dead letters. A defective topic does not turn the outbox
//! into dead letters.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};

/// A hold is probed at least every 10 s, and the relay checks every 0.5 s whether one is due.
const RESUMED_WITHIN: Duration = Duration::from_secs(15);

/// Exactly the rows above the new limit that are published after the change become dead letters.
#[tokio::test]
async fn lowered_size_limit_dead_letters_only_the_rows_above_it() {
    const LIMIT: i64 = 10_000;
    let outbox = Outbox::create("lowered", 3).await;
    let topic = outbox.topic("order");
    let mut relay = outbox.start_relay().await;
    let inserted = Cell::new(0);
    let insert = async |count: i64, bytes: usize| {
        let begin = inserted.replace(inserted.get() + count);
        rows::insert(&outbox, "order", 20, begin..begin + count, Filling::Random(bytes)).await;
    };
    for round in 0..30 {
        insert(98, 500).await;
        insert(2, 20_000).await;
        if round == 10 {
            let sent = "SELECT count(*) FROM app.outbox WHERE sent_at IS NOT NULL";
            wait_until("rows are published", STALLED, async || outbox.count(sent).await >= 500).await;
            outbox.cluster.alter(&topic, &[("max.message.bytes", &LIMIT.to_string())]).await;
            // The broker answers before it applies the change.
            let dead = "SELECT count(*) FROM app.outbox_dead_letter";
            wait_until("the limit applies", STALLED, async || {
                insert(1, 20_000).await;
                outbox.count(dead).await > 0
            })
            .await;
        }
    }
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());

    let dead = "SELECT event_id, length(payload), reason FROM app.outbox_dead_letter";
    let dead = outbox.client.query(dead, &[]).await.unwrap();
    for row in &dead {
        let (bytes, reason): (i32, String) = (row.get(1), row.get(2));
        assert!(i64::from(bytes) > LIMIT, "a valid row of {bytes} bytes is in the dead letters: {reason}");
        assert_eq!(reason, "record-too-large");
    }
    let dead: HashSet<uuid::Uuid> = dead.iter().map(|row| row.get(0)).collect();
    let mut report = outbox.check().await;
    let sessions = relay.log().matches("session ended").count();
    print!("{} dead letters, {sessions} sessions ended: {report}", dead.len());
    assert!(report.lost.iter().all(|event| dead.contains(&event.event_id)), "{report}");
    assert_eq!(report.lost.len(), dead.len(), "each row is either dead-lettered or delivered");
    report.lost.clear();
    report.assert_sound();
    // 19 rounds followed, with two large rows each.
    assert!(dead.len() >= 2 * 19, "{}", dead.len());
    outbox.drop().await;
}

/// Records must not be older than 0 ms, but all of them are, because the connection to Kafka is slow. No row is at
/// fault.
#[tokio::test]
async fn topic_that_refuses_everything_is_held_and_keeps_its_rows() {
    const NO_LIMIT: &str = "9223372036854775807";
    let mut outbox = Outbox::create("refuses_all", 3).await;
    outbox.create_topic("other", 3).await;
    let kafka = Proxy::open().await;
    kafka.delay(Duration::from_millis(20));
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.address());
    let mut relay = relay.start().await;
    for kind in ["order", "other"] {
        rows::insert(&outbox, kind, 50, 0..500, Filling::Nothing).await;
    }
    outbox.wait_until_drained(STALLED).await;

    let topic = outbox.topic("order");
    outbox.cluster.alter(&topic, &[("message.timestamp.before.max.ms", "0")]).await;
    for kind in ["order", "other"] {
        rows::insert(&outbox, kind, 50, 500..2_000, Filling::Nothing).await;
    }
    let held = [(topic.clone(), "invalid-timestamp".to_owned())];
    wait_until("the topic is held", STALLED, async || outbox.holds().await == held).await;
    outbox.wait_until_sent("other", STALLED).await;
    let probes = "SELECT coalesce(max(probes), 0)::bigint FROM app.outbox_hold";
    wait_until("the hold was probed twice", STALLED, async || outbox.count(probes).await >= 2).await;
    assert_eq!(outbox.holds().await, held);
    let waited = outbox.unsent_of("order").await;
    outbox.cluster.alter(&topic, &[("message.timestamp.before.max.ms", NO_LIMIT)]).await;
    let resumed = outbox.wait_until_sent("order", STALLED).await;
    assert!(relay.stop().await.success());
    let (order, other) = (outbox.check_of("order").await, outbox.check_of("other").await);
    let dead = outbox.dead_letters().await;
    print!(
        "{waited} rows waited, sent {resumed:.1?} after it accepted records again, dead letters {dead}: {order}"
    );
    print!("the other topic: {other}");
    assert_within("sent after the topic accepts records again", resumed, RESUMED_WITHIN);
    order.assert_exact();
    other.assert_sound();
    assert_eq!(dead, 0);
    outbox.drop().await;
}
