//! Reads topics from a point in time to their ends, for `verify`. It joins no consumer group and commits no offsets.

mod client;
mod partition;

pub use partition::Progress;

use crate::operate::fingerprint;
use crate::operate::fingerprint::Fingerprint;
use crate::options::Kafka;
use crate::publishing::producer::METADATA_TIMEOUT;
use client::Client;
use partition::Partition;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use relay::failure::{FailureKind, KafkaFailure};
use relay::reason::{NO_ANSWER, TOPIC_AUTHORIZATION, UNKNOWN_TOPIC};
use std::io;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The longest time without a record while records are left to read.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_millis(200);
const MICROSECONDS: i64 = 1_000;

/// A record in Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The place in the list of topics that the caller reads.
    pub topic: u32,
    pub partition: u32,
    pub offset: i64,
    /// The timestamp, in microseconds since 1970.
    pub at_us: i64,
    pub fingerprint: Fingerprint,
}

/// Why topics cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{0}")]
    Kafka(KafkaFailure),
    #[error("The Kafka user may not read topic {0}. Grant it Read on the topic.")]
    Denied(String),
    #[error(
        "Kafka deleted records of topic {0} while they were being read. Run the command with a later --since."
    )]
    Expired(String),
    #[error("Cannot write a temporary file: {0}. Choose another directory with --temp-dir.")]
    Files(#[from] io::Error),
}

/// A consumer for whole topics. Its methods block the thread.
pub struct TopicReader {
    consumer: BaseConsumer<Client>,
    /// The header with the event id.
    id_header: String,
}

/// What was read of a topic.
#[derive(Clone, Debug, Default)]
pub struct TopicRead {
    pub records: u64,
    pub partitions: Vec<PartitionRead>,
}

/// What was read of a partition.
#[derive(Clone, Copy, Debug)]
pub struct PartitionRead {
    /// Whether Kafka has deleted all records before the first one that was read.
    pub is_truncated: bool,
    /// The time of the first record, in microseconds since 1970; `None` if there is none.
    pub first_us: Option<i64>,
    /// Whether offsets are missing, because of compaction or transactions.
    pub has_gaps: bool,
}

impl TopicReader {
    /// A reader that finds the event id in this header. Connects in the background.
    pub fn new(settings: &Kafka, id_header: &str) -> Result<TopicReader, KafkaFailure> {
        Ok(TopicReader { consumer: client::consumer(settings)?, id_header: id_header.to_owned() })
    }

    /// The number of partitions of a topic; 0 if it does not exist.
    pub fn partitions(&self, topic: &str) -> Result<u32, ReadError> {
        let doing = format!("looking up topic {topic}");
        let metadata = self.consumer.fetch_metadata(Some(topic), METADATA_TIMEOUT);
        let metadata = metadata.map_err(|error| kafka(topic, &doing, &error))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(0) };
        match found.error().map(RDKafkaErrorCode::from) {
            None => Ok(found.partitions().len() as u32),
            Some(code) => match kafka(topic, &doing, &KafkaError::MetadataFetch(code)) {
                ReadError::Kafka(failure) if failure.reason == UNKNOWN_TOPIC.word => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Calls `each` for every record from `since_us` on, with its event id if it has one. Also calls it for the record before
    /// that time, which shows whether offsets in between are missing. `topic` is its place in the records.
    pub fn read(
        &self,
        (place, topic, partitions): (u32, &str, u32),
        since_us: i64,
        progress: &dyn Progress,
        mut each: impl FnMut(Option<Uuid>, Record) -> io::Result<()>,
    ) -> Result<TopicRead, ReadError> {
        let doing = format!("reading topic {topic}");
        let mut parts = self.find_range(topic, partitions, since_us)?;
        progress.begin(topic, parts.iter().map(Partition::left).sum());
        self.consumer
            .assign(&partition::unread(topic, &parts))
            .map_err(|error| kafka(topic, &doing, &error))?;
        let (mut records, mut last_record, mut last_error) = (0, Instant::now(), None);
        while parts.iter().any(|part| !part.is_done()) {
            match self.consumer.poll(WAIT) {
                Some(Ok(message)) => {
                    last_record = Instant::now();
                    let Some(part) = parts.get_mut(message.partition() as usize) else { continue };
                    if part.take(message.offset(), micros(&message)) {
                        records += 1;
                        progress.advance(1);
                        each(self.event_id(&message), record(place, &message))?;
                    }
                    if part.is_done() {
                        // It would deliver newer records. If pausing fails, they are ignored.
                        let _ = self.consumer.pause(&partition::list(topic, [message.partition()]));
                    }
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if let Some(part) = parts.get_mut(partition as usize).filter(|part| !part.is_done()) {
                        self.check_end(topic, partition, part)?;
                    }
                }
                Some(Err(error)) => last_error = tolerated(topic, &doing, &error)?.or(last_error),
                None => {}
            }
            if last_record.elapsed() > SILENCE_MAX {
                let silent = || NO_ANSWER.failure(format!("{doing}: no record within {SILENCE_MAX:?}"));
                return Err(ReadError::Kafka(last_error.unwrap_or_else(silent)));
            }
        }
        self.consumer.unassign().map_err(|error| kafka(topic, &doing, &error))?;
        // The end of a partition is reported without its topic, so none may be left for the next topic.
        while self.consumer.poll(Duration::ZERO).is_some() {}
        Ok(TopicRead { records, partitions: parts.iter().map(Partition::result).collect() })
    }

    fn event_id(&self, message: &BorrowedMessage<'_>) -> Option<Uuid> {
        let header = message.headers()?.iter().find(|header| header.key == self.id_header)?;
        std::str::from_utf8(header.value?).ok()?.parse().ok()
    }
}

/// A record without a time is never in a range.
fn micros(message: &BorrowedMessage<'_>) -> i64 {
    message.timestamp().to_millis().map_or(i64::MIN, |at| at.saturating_mul(MICROSECONDS))
}

fn record(topic: u32, message: &BorrowedMessage<'_>) -> Record {
    Record {
        topic,
        partition: message.partition() as u32,
        offset: message.offset(),
        at_us: micros(message),
        fingerprint: fingerprint::of_message(message),
    }
}

/// The client recovers from lost connections by itself, and needs no group.
fn tolerated(topic: &str, doing: &str, error: &KafkaError) -> Result<Option<KafkaFailure>, ReadError> {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::GroupAuthorizationFailed) => Ok(None),
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
            Err(ReadError::Expired(topic.to_owned()))
        }
        _ => match kafka(topic, doing, error) {
            ReadError::Kafka(failure) if failure.kind != FailureKind::Topic => Ok(Some(failure)),
            error => Err(error),
        },
    }
}

fn kafka(topic: &str, doing: &str, error: &KafkaError) -> ReadError {
    let failure = crate::errors::failure::failure(doing, error);
    if failure.reason == TOPIC_AUTHORIZATION.word {
        return ReadError::Denied(topic.to_owned());
    }
    ReadError::Kafka(failure)
}
