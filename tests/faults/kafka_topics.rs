//! Topics that are replaced, or get more partitions, while rows are published.

use rdkafka::admin::{AdminOptions, NewPartitions};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::support::checker::Report;
use crate::support::consumer::{self, Record};
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{Load, Writers};

fn in_flow() -> Load {
    Load { writers: 2, pause: Duration::from_millis(10), ..Load::default() }
}

/// The records of a deleted topic are gone. Those of the last topic must have no gap: for each key, everything from
/// some event on, and at the latest from the first event that was committed after the topic existed.
async fn assert_no_gap(outbox: &Outbox, there_from: &HashMap<String, i64>) -> Report {
    let topic = outbox.topic("order");
    let stored = consumer::read_all(&[topic]).await;
    let mut firsts: HashMap<String, i64> = HashMap::new();
    let mut committed = outbox.committed().await;
    committed.retain(|event| event.topic == outbox.topic("order"));
    let by_id: HashMap<_, _> = committed.iter().map(|event| (event.event_id, event.clone())).collect();
    for record in &stored {
        let event = &by_id[&record.event_id().unwrap()];
        let first = firsts.entry(event.key.clone()).or_insert(event.seq);
        *first = event.seq.min(*first);
    }
    committed.retain(|event| match firsts.get(&event.key) {
        Some(first) => {
            let before = there_from[&event.key];
            assert!(
                *first <= before + 1,
                "{} begins with {first}, but {before} was committed before the topic existed",
                event.key
            );
            event.seq >= *first
        }
        None => event.seq > there_from[&event.key],
    });
    Report::new(&committed, &stored)
}

/// The newest event of each key.
async fn newest(outbox: &Outbox) -> HashMap<String, i64> {
    let sql = "SELECT key, seq FROM app.aggregate";
    outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The replacement is so quick that the relay may not notice it, while its sessions have outdated information about the
/// partitions.
#[tokio::test]
async fn topic_replaced_while_rows_are_published_gets_all_later_rows() {
    const TIMES: usize = 5;
    let mut outbox = Outbox::create("replaced", 3).await;
    outbox.create_topic("other", 3).await;
    let keys = [outbox.add_aggregates("order", 50).await, outbox.add_aggregates("other", 50).await].concat();
    let mut relay = outbox.start_relay().await;
    let writers = Writers::start(&outbox, &keys, in_flow()).await;
    let mut there_from = HashMap::new();
    for _ in 0..TIMES {
        outbox.wait_until_settled(2_000, STALLED).await;
        outbox.cluster.delete(&outbox.topic("order")).await;
        outbox.cluster.create(&outbox.topic("order"), 3, &[]).await;
        there_from = newest(&outbox).await;
        there_from.retain(|key, _| key.starts_with("order"));
    }
    outbox.wait_until_settled(2_000, STALLED).await;
    writers.stop().await;
    let resumed = outbox.wait_until_sent("order", STALLED).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let (report, other) = (assert_no_gap(&outbox, &there_from).await, outbox.check_of("other").await);
    print!(
        "replaced {TIMES} times, drained {resumed:.1?} after the last write: {report}the other topic: {other}"
    );
    report.assert_sound();
    other.assert_sound();
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop().await;
}

/// The relay's guarantee applies while the number of partitions stays the same. If it changes, keys move to other
/// partitions, but nothing is lost.
#[tokio::test]
async fn added_partitions_move_keys_and_lose_nothing() {
    let outbox = Outbox::create("more_partitions", 3).await;
    let topic = outbox.topic("order");
    let keys = outbox.add_aggregates("order", 100).await;
    let mut relay = outbox.start_relay().await;
    let writers = Writers::start(&outbox, &keys, in_flow()).await;
    outbox.wait_until_settled(2_000, STALLED).await;
    let more = NewPartitions::new(&topic, 6);
    let answers = outbox.cluster.admin().create_partitions([&more], &AdminOptions::new()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    wait_until("there are 6 partitions", STALLED, async || outbox.cluster.partitions(&topic) == 6).await;
    relay.wait_for_log("the number of partitions of a topic has changed").await;
    let old = outbox.cluster.stored(&topic);
    outbox.wait_until_settled(2_000, STALLED).await;
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());

    let records = consumer::read_all(&[topic]).await;
    let newest = newest(&outbox).await;
    let (mut moved, mut used) = (0, HashSet::new());
    for key in &keys {
        let mut of_key: Vec<_> =
            records.iter().filter(|record| record.key.as_deref() == Some(key.as_bytes())).collect();
        // The old partition first. The new partition of a key is the same or 3 higher, because 6 is twice 3.
        of_key.sort_by_key(|record| (record.partition, record.offset));
        let partitions: HashSet<i32> = of_key.iter().map(|record| record.partition).collect();
        let bases: HashSet<i32> = partitions.iter().map(|partition| partition % 3).collect();
        assert_eq!(bases.len(), 1, "{key} is in {partitions:?}");
        let seqs: Vec<i64> = of_key.iter().map(|record| seq(record)).collect();
        assert_eq!(seqs, (1..=newest[key]).collect::<Vec<_>>(), "{key}: each event once and in order");
        moved += partitions.len() - 1;
        used.extend(partitions);
    }
    println!(
        "{} records, {old} of them before the relay noticed the change; {moved} of {} keys moved",
        records.len(),
        keys.len()
    );
    assert!(moved > 20 && used.len() == 6, "{moved} moved, partitions {used:?}");
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop().await;
}

fn seq(record: &Record) -> i64 {
    let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    value["seq"].as_i64().unwrap()
}
