//! Brokers that forget producers or refuse them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};

use crate::support::kafka_proxy::{Action, Proxy};
use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::kafka_wire::{
    INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID,
};
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{Load, Writers};

/// The number of producers that the broker knows in the topic's first partition.
async fn producers(kafka: &KafkaServer, topic: &str) -> usize {
    let arguments = ["describe-producers", "--topic", topic, "--partition", "0"];
    let printed = kafka.run_tool("org.apache.kafka.tools.TransactionsCommand", &arguments).await;
    assert!(printed.starts_with("ProducerId"), "the names of the columns: {printed}");
    printed.trim().lines().count() - 1
}

/// Between the rounds, the broker forgets the session's producer, and all of its records are deleted.
#[tokio::test]
async fn producer_that_the_broker_forgot_continues_without_a_gap() {
    const PARTITIONS: i32 = 3;
    const ROUNDS: i64 = 3;
    let kafka = KafkaServer::start_with(Settings {
        properties: vec![
            ("producer.id.expiration.ms", "500"),
            ("producer.id.expiration.check.interval.ms", "100"),
        ],
        ..Settings::default()
    })
    .await;
    let mut outbox = Outbox::on(&kafka.cluster(), "forgotten").await;
    outbox.create_topic("order", PARTITIONS).await;
    outbox.create_topic("deleted", PARTITIONS).await;
    let mut relay = outbox.relay().set("relay", "workers", 1).start().await;
    let mut deleted = 0;
    for round in 0..ROUNDS {
        for kind in ["order", "deleted"] {
            rows::insert(&outbox, kind, 50, round * 1_000..(round + 1) * 1_000, Filling::Nothing).await;
        }
        outbox.wait_until_drained(STALLED).await;
        let topic = outbox.topic("deleted");
        deleted = outbox.cluster.stored(&topic);
        if round + 1 < ROUNDS {
            let mut ends = TopicPartitionList::new();
            for partition in 0..PARTITIONS {
                ends.add_partition_offset(&topic, partition, Offset::End).unwrap();
            }
            outbox.cluster.admin().delete_records(&ends, &AdminOptions::new()).await.unwrap();
            for topic in outbox.topics() {
                wait_until("no producer is known", STALLED, async || producers(&kafka, &topic).await == 0)
                    .await;
            }
        }
    }
    assert!(relay.stop().await.success());
    let report = outbox.check_of("order").await;
    let sessions = relay.log().matches("session ended").count();
    print!("{sessions} sessions ended, {deleted} records in the other topic: {report}");
    report.assert_exact();
    assert_eq!(deleted, ROUNDS * 1_000, "no duplicates in the topic whose records were deleted");
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop_database().await;
}

/// Each of these codes ends a producer permanently.
#[tokio::test]
async fn producer_that_the_broker_refuses_is_replaced_and_nothing_is_lost() {
    const CODES: [i16; 4] = [
        OUT_OF_ORDER_SEQUENCE_NUMBER,
        UNKNOWN_PRODUCER_ID,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_ID_MAPPING,
    ];
    let outbox = Outbox::create("refused_producers", 6).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let proxy = Proxy::open().await;
    let refused = Arc::new(AtomicUsize::new(0));
    let (counter, mut requests) = (Arc::clone(&refused), 0);
    proxy.act(move |produce| {
        requests += 1;
        if requests % 20 != 0 || produce.first_sequence == 0 {
            return Action::Pass;
        }
        Action::Refuse(CODES[counter.fetch_add(1, Ordering::Relaxed) % CODES.len()])
    });
    let relay = outbox.relay().set("kafka", "bootstrap_servers", proxy.address());
    let mut relay = relay.start().await;
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    for enough in 1..=2 * CODES.len() {
        let what = format!("{enough} requests were refused");
        wait_until(&what, STALLED, async || refused.load(Ordering::Relaxed) >= enough).await;
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    let dead = outbox.dead_letters().await;
    let sessions = relay.log().matches("session ended").count();
    let refused = refused.load(Ordering::Relaxed);
    print!("{refused} requests refused, {sessions} sessions ended, dead letters {dead}: {report}");
    report.assert_sound();
    assert_eq!(dead, 0);
    outbox.drop().await;
}
