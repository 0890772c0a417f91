//! A consumer that is independent of the relay. It reads every partition of some topics from offset 0, without a
//! consumer group.

use outbox_relay::config;
use outbox_relay::kafka::client::client_config;
use outbox_relay::kafka::errors::failure;
use outbox_relay::relay::failure::KafkaFailure;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time without a record while records are left to read.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// The timeout of a request for topics or offsets.
pub(crate) const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_millis(50);

/// Reads whole topics. It blocks, so it needs a separate thread.
pub struct Consumer {
    consumer: BaseConsumer,
    /// Its partitions. The offsets in it mean nothing.
    partitions: TopicPartitionList,
    /// The number of records that it has returned.
    returned: u64,
}

/// A record in the client's memory. Nothing is copied.
pub struct Record<'a>(BorrowedMessage<'a>);

impl Record<'_> {
    /// The topic.
    pub fn topic(&self) -> &str {
        self.0.topic()
    }

    /// The partition. Records are ordered only within one.
    pub fn partition(&self) -> i32 {
        self.0.partition()
    }

    /// The key.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    /// The value; `None` is a tombstone.
    pub fn payload(&self) -> Option<&[u8]> {
        self.0.payload()
    }

    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers()?.iter().find(|header| header.key == name)?.value
    }
}

impl Consumer {
    /// Connects, finds the partitions and starts reading. The topics must exist.
    pub fn from_the_start(bootstrap_servers: &str, topics: &[&str]) -> Result<Consumer, KafkaFailure> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap_servers);
        config.set("allow.auto.create.topics", "false");
        // A mock broker answers an empty fetch only after this time, whatever arrives in the meantime.
        config.set("fetch.wait.max.ms", "2");
        Consumer::with(config, topics)
    }

    /// The same for a cluster that may require TLS and authentication.
    pub(crate) fn of(settings: &config::Kafka, topics: &[&str]) -> Result<Consumer, KafkaFailure> {
        Consumer::with(client_config(settings)?, topics)
    }

    fn with(mut config: ClientConfig, topics: &[&str]) -> Result<Consumer, KafkaFailure> {
        let consumer: BaseConsumer = config
            .set("client.id", "outbox-relay-consumer")
            .set("group.id", "outbox-relay-consumer") // required by librdkafka; no group is ever joined
            .set("enable.auto.commit", "false")
            // If Kafka has deleted records before they were read, that is an error. They must not be skipped.
            .set("auto.offset.reset", "error")
            .create()
            .map_err(|error| failure("creating a consumer", &error))?;
        let mut assignment = TopicPartitionList::new();
        for topic in topics {
            for partition in partitions(&consumer, topic)? {
                assignment
                    .add_partition_offset(topic, partition, Offset::Offset(0))
                    .map_err(|error| failure("assigning partitions", &error))?;
            }
        }
        consumer.assign(&assignment).map_err(|error| failure("starting to read", &error))?;
        Ok(Consumer { consumer, partitions: assignment, returned: 0 })
    }

    /// Passes to `show` every record that the brokers have at the time of the call, in order per partition. Ends early
    /// if `stop` is set.
    pub(crate) fn read_to_end(
        &mut self,
        stop: &AtomicBool,
        mut show: impl FnMut(&Record<'_>),
    ) -> Result<(), KafkaFailure> {
        let stored = self.stored()?;
        let mut last_record = Instant::now();
        while self.returned < stored && !stop.load(Ordering::Acquire) {
            if let Some(record) = self.next(WAIT)? {
                show(&record);
                last_record = Instant::now();
            } else if last_record.elapsed() > SILENCE_MAX {
                let left = stored - self.returned;
                return Err(KafkaFailure::unknown(format!(
                    "{left} records were not returned within {SILENCE_MAX:?}"
                )));
            }
        }
        Ok(())
    }

    /// The next record, if one arrives within this time. Records of one partition arrive in order. The client recovers
    /// from errors by itself if it can, so call this again after one.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Record<'_>>, KafkaFailure> {
        match self.consumer.poll(wait) {
            None => Ok(None),
            Some(Err(error)) => Err(failure("reading", &error)),
            Some(Ok(message)) => {
                self.returned += 1;
                Ok(Some(Record(message)))
            }
        }
    }

    /// Whether all records that the brokers have now were returned.
    pub fn is_at_end(&self) -> Result<bool, KafkaFailure> {
        Ok(self.returned >= self.stored()?)
    }

    /// The number of records that its partitions have ever had.
    fn stored(&self) -> Result<u64, KafkaFailure> {
        let partitions = self.partitions.elements();
        let names = partitions.iter().map(|partition| (partition.topic(), partition.partition()));
        ends(&self.consumer, names, METADATA_TIMEOUT)
    }
}

/// The number of records that these partitions have ever had: the sum of their end offsets, with one request per broker.
pub(crate) fn ends<'a>(
    client: &BaseConsumer,
    partitions: impl Iterator<Item = (&'a str, i32)>,
    within: Duration,
) -> Result<u64, KafkaFailure> {
    const DOING: &str = "asking for the ends of partitions";
    let mut asked = TopicPartitionList::new();
    for (topic, partition) in partitions {
        let added = asked.add_partition_offset(topic, partition, Offset::End);
        added.map_err(|error| failure(DOING, &error))?;
    }
    let answered = client.offsets_for_times(asked, within).map_err(|error| failure(DOING, &error))?;
    let mut sum = 0;
    for place in answered.elements() {
        place.error().map_err(|error| failure(DOING, &error))?;
        match place.offset() {
            Offset::Offset(end) => sum += end.unsigned_abs(),
            other => return Err(KafkaFailure::unknown(format!("{DOING}: the answer was {other:?}"))),
        }
    }
    Ok(sum)
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i32>, KafkaFailure> {
    let metadata = consumer
        .fetch_metadata(Some(topic), METADATA_TIMEOUT)
        .map_err(|error| failure(&format!("looking up topic {topic}"), &error))?;
    let found = metadata.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    match found {
        Some(found) if !found.partitions().is_empty() => {
            Ok(found.partitions().iter().map(rdkafka::metadata::MetadataPartition::id).collect())
        }
        _ => Err(KafkaFailure::unknown(format!("topic {topic} does not exist"))),
    }
}
