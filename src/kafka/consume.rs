//! A consumer that is independent of the relay: it reads every partition of some topics from offset 0, in no group, and
//! hands over what Kafka has.

use super::failure::failure;
use super::producer::METADATA_TIMEOUT;
use crate::relay::failure::Failure;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::Duration;

/// Reads whole topics. It blocks, so it wants a thread of its own.
pub struct Consumer {
    consumer: BaseConsumer,
    /// The offset to be read next, by topic and partition.
    next: BTreeMap<(String, i32), i64>,
}

/// A record as Kafka has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The topic.
    pub topic: String,
    /// The partition; only inside of one do records have an order.
    pub partition: i32,
    /// The place in the partition.
    pub offset: i64,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The headers, in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The value; `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
}

impl Record {
    /// The first header of this name, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

impl Consumer {
    /// Connects, finds the partitions and begins to read. The topics must exist.
    ///
    /// # Errors
    ///
    /// The brokers do not answer, or do not know a topic.
    pub fn from_the_start(bootstrap_servers: &str, topics: &[&str]) -> Result<Consumer, Failure> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap_servers)
            .set("client.id", "outbox-relay-consumer")
            .set("group.id", "outbox-relay-consumer") // librdkafka asks for one; no group is ever joined
            .set("enable.auto.commit", "false")
            .set("allow.auto.create.topics", "false")
            // Records that Kafka has deleted before they were read are an error, not something to skip.
            .set("auto.offset.reset", "error")
            // A mock broker answers an empty fetch only when this time is over, whatever arrives meanwhile.
            .set("fetch.wait.max.ms", "2")
            .create()
            .map_err(|error| failure("creating a consumer", &error))?;
        let mut assignment = TopicPartitionList::new();
        let mut next = BTreeMap::new();
        for topic in topics {
            for partition in partitions(&consumer, topic)? {
                assignment
                    .add_partition_offset(topic, partition, Offset::Offset(0))
                    .map_err(|error| failure("choosing what to read", &error))?;
                next.insert(((*topic).to_owned(), partition), 0);
            }
        }
        consumer.assign(&assignment).map_err(|error| failure("beginning to read", &error))?;
        Ok(Consumer { consumer, next })
    }

    /// The next record, if one comes within this time. Records of one partition come in their order.
    ///
    /// # Errors
    ///
    /// What the client reports. It goes on by itself where it can: ask again.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Record>, Failure> {
        match self.consumer.poll(wait) {
            None => Ok(None),
            Some(Err(error)) => Err(failure("reading", &error)),
            Some(Ok(message)) => {
                let record = record(&message);
                self.next.insert((record.topic.clone(), record.partition), record.offset + 1);
                Ok(Some(record))
            }
        }
    }

    /// Whether everything that the brokers have now was handed over.
    ///
    /// # Errors
    ///
    /// The brokers do not answer.
    pub fn is_at_end(&self) -> Result<bool, Failure> {
        for ((topic, partition), next) in &self.next {
            let (_, end) = self
                .consumer
                .fetch_watermarks(topic, *partition, METADATA_TIMEOUT)
                .map_err(|error| failure("asking for the end of a partition", &error))?;
            if *next < end {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i32>, Failure> {
    let metadata = consumer
        .fetch_metadata(Some(topic), METADATA_TIMEOUT)
        .map_err(|error| failure(&format!("looking topic {topic} up"), &error))?;
    let found = metadata.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    match found {
        Some(found) if !found.partitions().is_empty() => {
            Ok(found.partitions().iter().map(rdkafka::metadata::MetadataPartition::id).collect())
        }
        _ => Err(Failure::unknown(format!("topic {topic} does not exist"))),
    }
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Record {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        headers,
        payload: message.payload().map(<[u8]>::to_vec),
    }
}
