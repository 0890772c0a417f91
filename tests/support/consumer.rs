//! An independent consumer. It reads every partition from the beginning to the end, as it is stored.

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

use super::topics::Cluster;
use super::wait::STALLED;

/// A record in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub timestamp_ms: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(header, _)| header == name)?.1.as_deref()
    }

    /// The event id that consumers use for deduplication.
    pub fn event_id(&self) -> Option<Uuid> {
        std::str::from_utf8(self.header("event_id")?).ok()?.parse().ok()
    }

    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect()
        });
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            timestamp_ms: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
        }
    }
}

/// Reads topics from the beginning. Reading blocks the thread.
pub struct Reader {
    consumer: BaseConsumer,
    /// The next offset of each partition.
    next: HashMap<(String, i32), i64>,
}

impl Reader {
    /// Reads every current partition of these topics on the shared cluster.
    pub fn new(topics: &[String]) -> Self {
        Self::of(&Cluster::shared(), topics)
    }

    /// Reads every current partition of these topics.
    pub fn of(cluster: &Cluster, topics: &[String]) -> Self {
        let consumer: BaseConsumer = cluster
            .client()
            .set("group.id", "no-group-is-joined")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "5")
            .create()
            .unwrap();
        let mut assignment = TopicPartitionList::new();
        let mut next = HashMap::new();
        for topic in topics {
            for partition in 0..cluster.partitions(topic) {
                assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
                next.insert((topic.clone(), partition), 0);
            }
        }
        consumer.assign(&assignment).unwrap();
        Self { consumer, next }
    }

    /// The next record, if one arrives in time.
    pub fn next(&mut self, within: Duration) -> Option<Record> {
        let record = Record::of(&self.consumer.poll(within)?.unwrap());
        let next = self.next.get_mut(&(record.topic.clone(), record.partition)).unwrap();
        assert_eq!(record.offset, *next, "there is a gap before {record:?}");
        *next += 1;
        Some(record)
    }

    /// Reads up to the end that the partitions have at the time of the call.
    pub fn read_to_end(&mut self) -> Vec<Record> {
        let ends: Vec<((String, i32), i64)> = self
            .next
            .keys()
            .map(|place| {
                let (_, end) = self.consumer.fetch_watermarks(&place.0, place.1, STALLED).unwrap();
                (place.clone(), end)
            })
            .collect();
        let mut records = Vec::new();
        let mut last_record = Instant::now();
        while ends.iter().any(|(place, end)| self.next[place] < *end) {
            if let Some(record) = self.next(Duration::from_millis(100)) {
                records.push(record);
                last_record = Instant::now();
            }
            assert!(
                last_record.elapsed() < STALLED,
                "Kafka stores records that the consumer does not receive"
            );
        }
        records
    }

    /// Reads until `done` accepts the records that this call has read. Fails the test after `within`.
    pub fn until(
        &mut self,
        what: &str,
        within: Duration,
        mut done: impl FnMut(&[Record]) -> bool,
    ) -> Vec<Record> {
        let begun = Instant::now();
        let mut records = Vec::new();
        while !done(&records) {
            assert!(begun.elapsed() < within, "after {within:?} and {} records: no {what}", records.len());
            records.extend(self.next(Duration::from_millis(100)));
        }
        records
    }
}

/// All current records of these topics on the shared cluster, partition by partition in the order of the offsets.
pub async fn read_all(topics: &[String]) -> Vec<Record> {
    read_all_of(&Cluster::shared(), topics).await
}

/// All current records of these topics, partition by partition in the order of the offsets.
pub async fn read_all_of(cluster: &Cluster, topics: &[String]) -> Vec<Record> {
    let (cluster, topics) = (cluster.clone(), topics.to_vec());
    tokio::task::spawn_blocking(move || Reader::of(&cluster, &topics).read_to_end()).await.unwrap()
}
