//! Single Produce requests that are refused, delayed, or lose their answer.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::kafka_proxy::{Action, Proxy};
use crate::support::kafka_wire::{NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER, Produce};
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{self, Load, Writers};

const PARTITIONS: i32 = 6;

fn through(proxy: &Proxy, outbox: &Outbox) -> Relay {
    outbox.relay().set("kafka", "bootstrap_servers", proxy.address())
}

/// Sessions whose first request in a partition was refused.
#[derive(Default)]
struct Beginnings {
    refused: HashSet<(i64, i32)>,
    begun: HashSet<(i64, i32)>,
    /// Requests that were sent before any earlier request was stored.
    early: usize,
}

impl Beginnings {
    fn refuse_first(&mut self, produce: &Produce) -> Action {
        let place = (produce.producer_id, produce.partition);
        let first = produce.first_sequence == 0;
        if first && self.refused.insert(place) {
            let odd = self.refused.len() % 2 == 1;
            return Action::Refuse(if odd { NOT_ENOUGH_REPLICAS } else { NOT_LEADER_OR_FOLLOWER });
        }
        if first {
            self.begun.insert(place);
        } else if !self.begun.contains(&place) {
            self.early += 1;
        }
        Action::Pass
    }
}

/// A broker that does not know a producer accepts its first request at any sequence number. It would store a second
/// request that is in flight without the first.
#[tokio::test]
async fn session_whose_first_requests_are_refused_loses_and_repeats_nothing() {
    const ROUNDS: i64 = 6;
    let outbox = Outbox::create("first_refused", PARTITIONS).await;
    let proxy = Proxy::open().await;
    let beginnings = Arc::new(Mutex::new(Beginnings::default()));
    let rule = Arc::clone(&beginnings);
    proxy.act(move |produce| rule.lock().unwrap().refuse_first(produce));
    for round in 0..ROUNDS {
        // Enough rows for every partition of every session to have successors of its first row.
        rows::insert(&outbox, "order", 100, round * 3_000..(round + 1) * 3_000, Filling::Nothing).await;
        let mut relay = through(&proxy, &outbox).start().await;
        outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success());
    }
    let report = outbox.check().await;
    let (refused, early) = {
        let beginnings = beginnings.lock().unwrap();
        (beginnings.refused.len(), beginnings.early)
    };
    print!("{refused} first requests refused, {early} requests sent too early: {report}");
    assert!(refused >= (ROUNDS * i64::from(PARTITIONS)) as usize, "{refused}");
    report.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn answers_lost_with_their_connection_repeat_nothing() {
    let outbox = Outbox::create("lost_answers", PARTITIONS).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let proxy = Proxy::open().await;
    let lost = Arc::new(AtomicUsize::new(0));
    let (counter, mut requests) = (Arc::clone(&lost), 0);
    proxy.act(move |_| {
        requests += 1;
        if requests % 20 != 0 {
            return Action::Pass;
        }
        counter.fetch_add(1, Ordering::Relaxed);
        Action::LoseAnswer
    });
    let mut relay = through(&proxy, &outbox).start().await;
    // How many rows a request has depends on the machine.
    let begun = Instant::now();
    while lost.load(Ordering::Relaxed) < 5 && begun.elapsed() < STALLED {
        Writers::start(&outbox, &keys, Load { events: 10_000, ..Load::default() }).await.finish().await;
        outbox.wait_until_drained(STALLED).await;
    }
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    let lost = lost.load(Ordering::Relaxed);
    print!("{lost} answers lost: {report}");
    assert!(lost >= 5, "{lost}");
    report.assert_exact();
    outbox.drop().await;
}

/// Delays the first request with several records after the first 20 requests.
fn hold_one(proxy: &Proxy) -> Arc<Mutex<Option<Produce>>> {
    let held = Arc::new(Mutex::new(None));
    let (rule, mut requests) = (Arc::clone(&held), 0);
    proxy.act(move |produce| {
        requests += 1;
        let mut held = rule.lock().unwrap();
        if requests < 20 || held.is_some() || produce.records < 2 {
            return Action::Pass;
        }
        *held = Some(produce.clone());
        Action::Hold
    });
    held
}

/// The delayed request arrives long after its rows were sent again.
async fn assert_only_late_duplicates(outbox: Outbox, proxy: &Proxy, held: &Mutex<Option<Produce>>) {
    let held = held.lock().unwrap().clone().unwrap();
    let stored = outbox.cluster.stored(&held.topic);
    proxy.release();
    let what = format!("the {} delayed records are stored", held.records);
    wait_until(&what, STALLED, async || {
        outbox.cluster.stored(&held.topic) >= stored + i64::from(held.records)
    })
    .await;
    let report = outbox.check().await;
    print!("{} records were stored late: {report}", held.records);
    report.assert_sound();
    assert!(report.duplicates >= held.records as usize, "{report}");
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop().await;
}

/// The first request is refused and waits to be sent again. The second one is on its way while the session ends: the broker
/// refuses it too, and the client sends it again under a new epoch, in which nothing precedes it.
#[tokio::test]
async fn request_is_not_stored_before_one_that_was_taken_back_when_the_session_ended() {
    const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);
    let outbox = Outbox::create("taken_back", 1).await;
    let proxy = Proxy::open().await;
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    proxy.act(move |produce| {
        if produce.first_sequence == 0 {
            return Action::Pass;
        }
        match counter.fetch_add(1, Ordering::Relaxed) {
            0 => Action::Refuse(NOT_ENOUGH_REPLICAS),
            _ => Action::Hold,
        }
    });
    let relay = through(&proxy, &outbox).set("relay", "publish_timeout", "2s").set("relay", "workers", 1);
    let relay = relay.set_kafka_property("socket.timeout.ms", "60000");
    let mut relay = relay.set_kafka_property("batch.size", "20000").start().await;
    rows::insert(&outbox, "order", 1, 0..20, Filling::Random(8_000)).await;
    wait_until("a request is delayed", STALLED, async || seen.load(Ordering::Relaxed) >= 2).await;
    // The delay ends while the session waits for its last reports. It is part of the fault, not a wait for a result.
    tokio::time::sleep(PUBLISH_TIMEOUT + Duration::from_secs(1)).await;
    proxy.release();
    relay.wait_for_log("session ended").await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    print!("{report}");
    report.assert_sound();
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop().await;
}

/// The outbox is emptied and its ids restart while one event is in flight and another one is rejected.
#[tokio::test]
async fn rows_that_have_the_ids_of_settled_ones_are_published_too() {
    for on_rejected in ["dead-letter", "block-key"] {
        let outbox = Outbox::create("reused_ids", 1).await;
        let keys = outbox.add_aggregates("order", 3).await;
        let proxy = Proxy::open().await;
        let held = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&held);
        proxy.act(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Action::Hold
        });
        outbox.client.batch_execute("BEGIN").await.unwrap();
        let mut first = writers::write(&outbox.client, &keys[..1]).await;
        let rejected = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                        VALUES ('order', 'rejected', 'Changed', '{}', '[1]') RETURNING id";
        first.push(outbox.client.query_one(rejected, &[]).await.unwrap().get(0));
        outbox.client.batch_execute("COMMIT").await.unwrap();
        // One worker claims both lanes.
        let relay = through(&proxy, &outbox).set("outbox", "on_rejected", on_rejected);
        let mut relay = relay.set("relay", "workers", 1).start().await;
        wait_until("the request is delayed", STALLED, async || held.load(Ordering::Relaxed) > 0).await;
        let restart = "DELETE FROM app.outbox; ALTER SEQUENCE app.outbox_id_seq RESTART";
        outbox.client.batch_execute(restart).await.unwrap();
        let second = writers::write(&outbox.client, &keys[1..]).await;
        assert_eq!(first, second, "the ids are used again");
        proxy.release();
        outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success());
        outbox.check().await.assert_exact();
        assert_eq!(outbox.dead_letters().await, 0, "the rejected row was deleted");
        assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_blocked_key").await, 0);
        outbox.drop().await;
    }
}

#[tokio::test]
async fn late_request_of_an_abandoned_session_causes_only_duplicates() {
    let outbox = Outbox::create("late_session", PARTITIONS).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let proxy = Proxy::open().await;
    let held = hold_one(&proxy);
    // With a shorter timeout, the client would send the request again on another connection, and the session would continue.
    let relay = through(&proxy, &outbox).set("relay", "publish_timeout", "2s");
    let mut relay = relay.set_kafka_property("socket.timeout.ms", "60000").start().await;
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    wait_until("a request is delayed", STALLED, async || held.lock().unwrap().is_some()).await;
    writers.stop().await;
    relay.wait_for_log("session ended").await;
    outbox.wait_until_drained(STALLED).await;
    assert_only_late_duplicates(outbox, &proxy, &held).await;
    assert!(relay.stop().await.success());
}

#[tokio::test]
async fn late_request_of_a_killed_relay_causes_only_duplicates() {
    let outbox = Outbox::create("late_relay", PARTITIONS).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let proxy = Proxy::open().await;
    let held = hold_one(&proxy);
    let mut victim = through(&proxy, &outbox).start().await;
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    wait_until("a request is delayed", STALLED, async || held.lock().unwrap().is_some()).await;
    victim.kill();
    let mut successor = outbox.start_relay().await;
    outbox.wait_until_settled(2_000, STALLED).await;
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert_only_late_duplicates(outbox, &proxy, &held).await;
    assert!(successor.stop().await.success());
}
