//! Topics that get more partitions, or are created again with another number of them, while a relay runs.

use rdkafka::admin::{AdminOptions, NewPartitions};
use std::collections::HashMap;
use std::time::Duration;

use crate::support::consumer::{self, Record};
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{Load, Writers, write};
use relay::partition;

/// The relay looks up each topic that is in use every 30 seconds.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(30);
/// The documentation promises this.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);
const CHANGED: &str = "the number of partitions of a topic has changed";

async fn add_partitions(outbox: &Outbox, partitions: usize) {
    let topic = outbox.topic("order");
    let more = NewPartitions::new(&topic, partitions);
    let answers = outbox.cluster.admin().create_partitions([&more], &AdminOptions::new()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let there = async || outbox.cluster.partitions(&topic) == partitions as i32;
    wait_until("the partitions exist", STALLED, there).await;
}

/// Writes a round of events for all keys and waits until they are sent.
async fn round(outbox: &Outbox, keys: &[String]) {
    write(&outbox.client, keys).await;
    wait_until("the round is sent", STALLED, async || outbox.unsent().await == 0).await;
}

/// Writes rounds until the relay has noticed the change, and then 20 more.
async fn rounds_around_change(outbox: &Outbox, keys: &[String], relay: &RelayProcess) -> Duration {
    let noticed = wait_until("the relay notices the change", NOTICED_WITHIN, async || {
        round(outbox, keys).await;
        relay.log().contains(CHANGED)
    })
    .await;
    for _ in 0..20 {
        round(outbox, keys).await;
    }
    noticed
}

/// For each key, the partitions in the order of its events.
async fn partitions_of_keys(outbox: &Outbox) -> HashMap<String, Vec<i32>> {
    let mut records = consumer::read_all(&[outbox.topic("order")]).await;
    records.sort_by_key(seq);
    let mut partitions: HashMap<String, Vec<i32>> = HashMap::new();
    for record in records {
        let key = String::from_utf8(record.key.clone().unwrap()).unwrap();
        partitions.entry(key).or_default().push(record.partition);
    }
    partitions
}

/// Checks that all events of a key are in its partition of three, up to some event, and the others in its partition of twelve,
/// in order, each once. Returns how many keys have moved.
async fn keys_moved_once(outbox: &Outbox) -> usize {
    let mut events: HashMap<String, Vec<(i32, i64, i64)>> = HashMap::new();
    let records = consumer::read_all(&[outbox.topic("order")]).await;
    assert_eq!(records.len(), outbox.committed().await.len());
    for record in records {
        let key = String::from_utf8(record.key.clone().unwrap()).unwrap();
        events.entry(key).or_default().push((record.partition, record.offset, seq(&record)));
    }
    let mut moved = 0;
    for (key, mut events) in events {
        let [old, new] = [3, 12].map(|partitions| partition::of(key.as_bytes(), partitions) as i32);
        events.sort_by_key(|(partition, offset, _)| (*partition != old, *offset));
        assert!(events.iter().all(|(partition, ..)| [old, new].contains(partition)), "{key}: {events:?}");
        let seqs: Vec<i64> = events.iter().map(|(_, _, seq)| *seq).collect();
        assert_eq!(seqs, (1..=events.len() as i64).collect::<Vec<_>>(), "{key} moves from {old} to {new}");
        assert_eq!(events.last().unwrap().0, new, "{key}");
        moved += usize::from(old != new);
    }
    println!("{moved} keys have moved");
    moved
}

fn seq(record: &Record) -> i64 {
    let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    value["seq"].as_i64().unwrap()
}

/// Nothing fails, and no event waits when the partitions are added. The workers meet the topic at different times.
#[tokio::test]
async fn each_key_moves_once_when_partitions_are_added() {
    let outbox = Outbox::create("partitions_added", 3).await;
    let keys = outbox.add_aggregates("order", 10).await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    round(&outbox, &keys).await;
    add_partitions(&outbox, 12).await;
    let noticed = rounds_around_change(&outbox, &keys, &relay).await;
    println!("noticed after {noticed:.1?}");
    assert_eq!(relay.log().matches(CHANGED).count(), 1, "one line, although each session uses the change");
    let (status, said) = relay.get("/readyz").await.unwrap();
    assert_eq!(status, 200);
    assert!(said.contains("12 partitions instead of 3"), "{said}");
    let doctor = outbox.relay().set("admin", "listen", relay.address()).command(&["doctor", "--json"]);
    let word = "relay-note";
    assert!(doctor.stdout.contains(word), "{doctor}");
    assert!(relay.stop().await.success());
    assert!(keys_moved_once(&outbox).await >= 5);
    outbox.drop().await;
}

/// The procedure of docs/record-format.md keeps the order of each key: all events before the change are in Kafka, and may
/// be consumed, before the first one after it is sent.
#[tokio::test]
async fn the_procedure_for_more_partitions_keeps_the_order_of_each_key() {
    let outbox = Outbox::create("partitions_procedure", 3).await;
    let topic = outbox.topic("order");
    let keys = outbox.add_aggregates("order", 30).await;
    let mut relays = [outbox.start_relay().await, outbox.start_relay().await];
    let writers =
        Writers::start(&outbox, &keys, Load { pause: Duration::from_millis(20), ..Load::default() }).await;
    outbox.wait_until_settled(1_000, STALLED).await;
    let operate = |command: &str| _ = outbox.operator().command(&[command, "--topic", &topic]).succeeds();
    operate("pause");
    wait_until("nothing of the topic is in flight", STALLED, async || outbox.claims().await == 0).await;
    let before = outbox.cluster.stored(&topic);
    add_partitions(&outbox, 12).await;
    tokio::time::sleep(LOOKED_UP_WITHIN).await; // a step of the procedure
    assert_eq!(outbox.cluster.stored(&topic), before, "the pause lasts");
    operate("resume");
    outbox.wait_until_settled(1_000, STALLED).await;
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    for relay in &mut relays {
        assert!(relay.stop().await.success());
    }
    assert!(keys_moved_once(&outbox).await > 10);
    outbox.drop().await;
}

/// An idle relay whose topic is created again notices that it has more partitions, or fewer, even if no key belongs to one
/// that is gone.
#[tokio::test]
async fn a_topic_created_again_with_another_number_of_partitions_is_used_as_it_is() {
    let outbox = Outbox::create("partitions_again", 3).await;
    let topic = outbox.topic("order");
    let keys = outbox.add_aggregates("order", 10).await;
    let mut relay = outbox.start_relay().await;
    round(&outbox, &keys).await;
    for (changes, partitions) in [(1, 12), (2, 5)] {
        outbox.cluster.delete(&topic).await;
        outbox.cluster.create(&topic, partitions, &[]).await;
        let noticed = wait_until("the relay notices the change", NOTICED_WITHIN, async || {
            round(&outbox, &keys).await;
            relay.log().matches(CHANGED).count() == changes
        })
        .await;
        println!("{partitions} partitions: noticed after {noticed:.1?}");
        let stored = outbox.cluster.stored(&topic);
        for _ in 0..20 {
            round(&outbox, &keys).await;
        }
        assert_eq!(outbox.cluster.stored(&topic), stored + 200);
        for (key, used) in partitions_of_keys(&outbox).await {
            let right = partition::of(key.as_bytes(), partitions as u32) as i32;
            assert!(used.ends_with(&[right; 20]), "{key} belongs to {right}: {used:?}");
        }
    }
    assert!(relay.stop().await.success());
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop().await;
}
