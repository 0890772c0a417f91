//! A consumer that is independent of the relay. It reads every partition of some topics from offset 0, without a
//! consumer group.

use outbox_relay::config;
use outbox_relay::kafka::client_config::client_config;
use outbox_relay::kafka::errors::failure::failure;
use outbox_relay::relay::failure::KafkaFailure;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time without a record while records are left to read.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// The timeout of a request for topics or offsets.
pub(super) const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_millis(50);

/// Reads whole topics. It blocks, so it needs a separate thread.
pub struct Consumer {
    consumer: BaseConsumer,
    /// The next offset to read, by topic and partition.
    next: BTreeMap<(String, i32), i64>,
}

/// A record in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The topic.
    pub topic: String,
    /// The partition. Records are ordered only within one.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The headers, in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The value; `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
}

/// A record in the client's memory. Nothing is copied.
pub struct View<'a>(BorrowedMessage<'a>);

impl View<'_> {
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

impl Record {
    /// The first header of this name, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

impl Consumer {
    /// Connects, finds the partitions and starts reading. The topics must exist.
    ///
    /// # Errors
    ///
    /// If the brokers do not answer or do not know a topic.
    pub fn from_the_start(bootstrap_servers: &str, topics: &[&str]) -> Result<Consumer, KafkaFailure> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap_servers);
        config.set("allow.auto.create.topics", "false");
        // A mock broker answers an empty fetch only after this time, whatever arrives in the meantime.
        config.set("fetch.wait.max.ms", "2");
        Consumer::with(config, topics)
    }

    /// The same for a cluster that may require TLS and authentication.
    ///
    /// # Errors
    ///
    /// As for [`Consumer::from_the_start`], and if librdkafka does not accept the settings.
    pub fn of(settings: &config::Kafka, topics: &[&str]) -> Result<Consumer, KafkaFailure> {
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
        let mut next = BTreeMap::new();
        for topic in topics {
            for partition in partitions(&consumer, topic)? {
                assignment
                    .add_partition_offset(topic, partition, Offset::Offset(0))
                    .map_err(|error| failure("assigning partitions", &error))?;
                next.insert(((*topic).to_owned(), partition), 0);
            }
        }
        consumer.assign(&assignment).map_err(|error| failure("starting to read", &error))?;
        Ok(Consumer { consumer, next })
    }

    /// Passes to `show` every record that the brokers have at the time of the call, in order per partition. Ends early
    /// if `stop` is set. Do not mix it with [`Consumer::next`].
    ///
    /// # Errors
    ///
    /// If the brokers do not answer or do not return all records.
    pub fn read_to_end(
        &self,
        stop: &AtomicBool,
        mut show: impl FnMut(&View<'_>),
    ) -> Result<(), KafkaFailure> {
        let mut left = self.stored()?;
        let mut last_record = Instant::now();
        while left > 0 && !stop.load(Ordering::Acquire) {
            if let Some(record) = self.view(WAIT)? {
                show(&record);
                left -= 1;
                last_record = Instant::now();
            } else if last_record.elapsed() > SILENCE_MAX {
                return Err(KafkaFailure::unknown(format!(
                    "{left} records were not returned within {SILENCE_MAX:?}"
                )));
            }
        }
        Ok(())
    }

    /// The next record in the client's memory, if one arrives within this time.
    ///
    /// # Errors
    ///
    /// As for [`Consumer::next`].
    pub fn view(&self, wait: Duration) -> Result<Option<View<'_>>, KafkaFailure> {
        match self.consumer.poll(wait) {
            None => Ok(None),
            Some(Err(error)) => Err(failure("reading", &error)),
            Some(Ok(message)) => Ok(Some(View(message))),
        }
    }

    /// The number of records that its partitions have ever had.
    fn stored(&self) -> Result<u64, KafkaFailure> {
        const DOING: &str = "asking for the ends of partitions";
        let mut asked = TopicPartitionList::with_capacity(self.next.len());
        for (topic, partition) in self.next.keys() {
            asked
                .add_partition_offset(topic, *partition, Offset::End)
                .map_err(|error| failure(DOING, &error))?;
        }
        let ends = self
            .consumer
            .offsets_for_times(asked, METADATA_TIMEOUT)
            .map_err(|error| failure(DOING, &error))?;
        sum_of_ends(&ends, DOING)
    }

    /// The next record, if one arrives within this time. Records of one partition arrive in order.
    ///
    /// # Errors
    ///
    /// The errors that the client reports. It recovers by itself if it can, so call this again.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Record>, KafkaFailure> {
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

    /// Whether all records that the brokers have now were returned.
    ///
    /// # Errors
    ///
    /// If the brokers do not answer.
    pub fn is_at_end(&self) -> Result<bool, KafkaFailure> {
        for ((topic, partition), next) in &self.next {
            let (_, end) = self
                .consumer
                .fetch_watermarks(topic, *partition, METADATA_TIMEOUT)
                .map_err(|error| failure("querying the end of a partition", &error))?;
            if *next < end {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The sum of offsets that were requested as [`Offset::End`].
pub(super) fn sum_of_ends(ends: &TopicPartitionList, doing: &str) -> Result<u64, KafkaFailure> {
    let mut sum = 0;
    for place in ends.elements() {
        place.error().map_err(|error| failure(doing, &error))?;
        match place.offset() {
            Offset::Offset(end) => sum += end.unsigned_abs(),
            other => return Err(KafkaFailure::unknown(format!("{doing}: the answer was {other:?}"))),
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
