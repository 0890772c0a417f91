//! The checker's consumer. It reads every partition from offset 0 to its end, as it is stored.

use openssl::sha::sha256;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use std::time::{Duration, Instant};
use uuid::Uuid;

use crate::checker::{Checker, Digest, Stored};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Passes every record of these topics to the checker, partition by partition in the order of the offsets. Blocks the
/// thread.
///
/// # Panics
///
/// If a partition does not begin at offset 0, has a gap, or cannot be read to its end.
pub fn read_all(bootstrap: &str, topics: &[(String, i32)], checker: &mut Checker) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "no-group-is-joined")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    for (topic, partitions) in topics {
        for partition in 0..*partitions {
            read_partition(&consumer, topic, partition, checker);
        }
    }
}

fn read_partition(consumer: &BaseConsumer, topic: &str, partition: i32, checker: &mut Checker) {
    let (first, end) = consumer.fetch_watermarks(topic, partition, ANSWER_TIMEOUT).unwrap();
    assert_eq!(first, 0, "{topic}/{partition} must begin at offset 0");
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    consumer.assign(&assignment).unwrap();
    let mut next = 0;
    let mut last_answer = Instant::now();
    while next < end {
        assert!(
            last_answer.elapsed() < ANSWER_TIMEOUT,
            "{topic}/{partition}: no record after offset {next} of {end}"
        );
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let record = stored(&message.unwrap());
        assert_eq!(record.offset, next, "there is a gap before {record:?}");
        checker.record(&record);
        next += 1;
        last_answer = Instant::now();
    }
}

fn stored(message: &BorrowedMessage<'_>) -> Stored {
    Stored {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        appended_ms: message.timestamp().to_millis().expect("a broker timestamp"),
        event_id: event_id(message),
        // The keys of the ledger are ASCII, so nothing is replaced here.
        key: message.key().map(|key| String::from_utf8_lossy(key).into_owned()),
        value: message.payload().map(|value| Digest(sha256(value))),
    }
}

/// The event id that consumers use for deduplication: the first header of this name.
fn event_id(message: &BorrowedMessage<'_>) -> Option<Uuid> {
    let header = message.headers()?.iter().find(|header| header.key == "event_id")?;
    std::str::from_utf8(header.value?).ok()?.parse().ok()
}
