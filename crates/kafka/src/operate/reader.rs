//! Reads topics from a point in time to their ends, for `verify`, with digests that it compares with those of rows. It joins no
//! consumer group and commits no offsets.

use crate::client::{Callbacks, METADATA_TIMEOUT, client_config, number};
use crate::cluster::record_bytes_max;
use crate::errors::failure;
use crate::headers::HeaderTemplate;
use crate::options::Kafka;
use crate::record;
use crate::tokens::Tokens;
use openssl::sha::Sha256;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use relay::failure::{FailureKind, KafkaFailure, Rejection};
use relay::outbox::Event;
use relay::reason::{NO_ANSWER, TOPIC_AUTHORIZATION, UNKNOWN_TOPIC};
use std::io;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The longest time without a record while records are left to read.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_millis(200);
const MICROSECONDS: i64 = 1_000;

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
    consumer: BaseConsumer<Callbacks>,
    /// The header with the event id.
    id_header: String,
}

#[derive(Clone, Debug, Default)]
pub struct TopicRead {
    pub records: u64,
    pub partitions: Vec<PartitionRead>,
}

/// What is left to read of a partition, the offsets from `next` to `end`, and what was read.
#[derive(Clone, Copy, Debug)]
pub struct PartitionRead {
    next: i64,
    end: i64,
    /// The partition's leader has confirmed the end, and the rest is read again.
    end_is_confirmed: bool,
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
        Ok(TopicReader { consumer: consumer(settings)?, id_header: id_header.to_owned() })
    }

    /// The number of partitions of a topic; 0 if it does not exist.
    pub fn partitions(&self, topic: &str) -> Result<u32, ReadError> {
        let doing = format!("looking up topic {topic}");
        self.drain();
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

    /// Calls `begin` with the approximate number of records, then `each` for every record from `since_us` on, with its event
    /// id if it has one. Also calls it for the record before that time, which shows whether offsets in between are missing.
    /// `place` is that of the topic in the records.
    pub fn read(
        &self,
        (place, topic, partitions): (u32, &str, u32),
        since_us: i64,
        begin: impl FnOnce(u64),
        mut each: impl FnMut(Option<Uuid>, Record) -> io::Result<()>,
    ) -> Result<TopicRead, ReadError> {
        let doing = format!("reading topic {topic}");
        let failed = |error| kafka(topic, &doing, &error);
        let mut parts = self.find_range(topic, partitions, since_us)?;
        begin(parts.iter().map(PartitionRead::left).sum());
        let mut unread = TopicPartitionList::new();
        for (partition, part) in (0..).zip(&parts).filter(|(_, part)| !part.is_done()) {
            unread.add_partition_offset(topic, partition, Offset::Offset(part.next)).map_err(failed)?;
        }
        self.consumer.assign(&unread).map_err(failed)?;
        let (mut records, mut last_record, mut last_error) = (0, Instant::now(), None);
        while parts.iter().any(|part| !part.is_done()) {
            match self.consumer.poll(WAIT) {
                Some(Ok(message)) => {
                    let Some(part) = parts.get_mut(message.partition() as usize) else { continue };
                    if part.take(message.offset(), micros(&message)) {
                        records += 1;
                        each(self.event_id(&message), record(place, &message))?;
                    }
                    if part.is_done() {
                        // It would deliver newer records. If pausing fails, they are ignored.
                        let mut read = TopicPartitionList::new();
                        read.add_partition(topic, message.partition());
                        let _ = self.consumer.pause(&read);
                    }
                    last_record = Instant::now(); // after `each`, which may take longer than the limit
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
        self.consumer.unassign().map_err(failed)?;
        // The end of a partition is reported without its topic, so none may be left for the next topic.
        self.drain();
        Ok(TopicRead { records, partitions: parts })
    }

    /// Drops what has arrived. A poll also renews the token, which the next request may need.
    fn drain(&self) {
        while self.consumer.poll(Duration::ZERO).is_some() {}
    }

    fn event_id(&self, message: &BorrowedMessage<'_>) -> Option<Uuid> {
        let header = message.headers()?.iter().find(|header| header.key == self.id_header)?;
        std::str::from_utf8(header.value?).ok()?.parse().ok()
    }

    /// The records of each partition from this time to its present end, and the record before them.
    fn find_range(
        &self,
        topic: &str,
        partitions: u32,
        since_us: i64,
    ) -> Result<Vec<PartitionRead>, ReadError> {
        let doing = format!("reading the offsets of topic {topic}");
        let failed = |error| kafka(topic, &doing, &error);
        self.drain();
        let mut times = TopicPartitionList::new();
        times.add_partition_range(topic, 0, partitions as i32 - 1);
        // Kafka has no negative times.
        let since_ms = (since_us / MICROSECONDS).max(0);
        times.set_all_offsets(Offset::Offset(since_ms)).map_err(failed)?;
        let starts = self.consumer.offsets_for_times(times, METADATA_TIMEOUT).map_err(failed)?;
        let mut parts = Vec::new();
        for partition in 0..partitions as i32 {
            let (low, end) =
                self.consumer.fetch_watermarks(topic, partition, METADATA_TIMEOUT).map_err(failed)?;
            let start = starts.find_partition(topic, partition);
            if let Some(start) = &start {
                start.error().map_err(failed)?;
            }
            let start = match start.map(|start| start.offset()) {
                Some(Offset::Offset(offset)) => offset,
                // No record is that late.
                _ => end,
            };
            parts.push(PartitionRead::new(low, start, end));
        }
        Ok(parts)
    }

    /// The client has reached the end of the partition before the offset that was its end. Either the last offsets have no
    /// records, or the partition has a new leader that does not know yet that they are committed.
    fn check_end(&self, topic: &str, partition: i32, part: &mut PartitionRead) -> Result<(), ReadError> {
        if part.end_is_confirmed {
            part.skip_rest();
            return Ok(());
        }
        let doing = format!("reading the end of topic {topic}");
        let failed = |error| kafka(topic, &doing, &error);
        let (_, end) = self.consumer.fetch_watermarks(topic, partition, METADATA_TIMEOUT).map_err(failed)?;
        part.end_is_confirmed = end >= part.end;
        // The client does not report the same end twice.
        self.consumer.seek(topic, partition, Offset::Offset(part.next), METADATA_TIMEOUT).map_err(failed)
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
        fingerprint: fingerprint(message.key(), message.payload(), message.headers()),
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
    let failure = failure(doing, error);
    if failure.reason == TOPIC_AUTHORIZATION.word {
        return ReadError::Denied(topic.to_owned());
    }
    ReadError::Kafka(failure)
}

impl PartitionRead {
    /// From `low`, its first offset, to `end`. The range begins at `start`.
    fn new(low: i64, start: i64, end: i64) -> PartitionRead {
        let start = start.clamp(low, end);
        PartitionRead {
            next: (start - 1).max(low),
            end,
            is_truncated: low > 0 && start == low,
            first_us: None,
            has_gaps: false,
            end_is_confirmed: false,
        }
    }

    fn left(&self) -> u64 {
        (self.end - self.next).unsigned_abs()
    }

    fn is_done(&self) -> bool {
        self.next >= self.end
    }

    /// No records are left before the end.
    fn skip_rest(&mut self) {
        self.has_gaps |= !self.is_done();
        self.next = self.end;
    }

    /// Whether the record at this offset belongs to the range.
    fn take(&mut self, offset: i64, at_us: i64) -> bool {
        if offset < self.next || offset >= self.end {
            if offset >= self.end {
                self.skip_rest();
            }
            return false;
        }
        self.has_gaps |= offset > self.next;
        self.end_is_confirmed = false;
        self.first_us.get_or_insert(at_us);
        self.next = offset + 1;
        true
    }
}

/// The largest response to a fetch. Larger records are fetched too.
const FETCH_BYTES: usize = 8 * 1024 * 1024;
/// What a response has in addition to its records.
const RESPONSE_OVERHEAD: usize = 512;
/// How long to wait for the first token. librdkafka requests it as soon as the client exists.
const TOKEN_WAIT: Duration = Duration::from_millis(100);

fn consumer(settings: &Kafka) -> Result<BaseConsumer<Callbacks>, KafkaFailure> {
    let mut config = client_config(settings)?;
    let record_bytes = record_bytes_max(settings);
    // A response must fit into the user's limit. librdkafka derives its own default from the size of a fetch.
    let response_max = number(&config, "receive.message.max.bytes").unwrap_or(usize::MAX);
    let fetch_bytes = FETCH_BYTES.max(record_bytes).min(response_max.saturating_sub(RESPONSE_OVERHEAD));
    config
        // librdkafka rejects a smaller fetch.
        .set("message.max.bytes", record_bytes.min(fetch_bytes).to_string())
        // librdkafka requires it. No group is joined, because the partitions are assigned.
        .set("group.id", "outbox-relay-verify")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // Records that were deleted before they were read must not be skipped.
        .set("auto.offset.reset", "error")
        // The relay publishes without transactions, so those of other producers need not be awaited.
        .set("isolation.level", "read_uncommitted")
        .set("enable.partition.eof", "true")
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.max.bytes", fetch_bytes.to_string());
    let callbacks = Callbacks { tokens: Tokens::of(settings), ..Callbacks::default() };
    let consumer = BaseConsumer::from_config_and_context(&config, callbacks)
        .map_err(|error| failure("creating a consumer", &error))?;
    if settings.uses_tokens() {
        // The token is fetched while the consumer is polled.
        let _ = consumer.poll(TOKEN_WAIT);
    }
    Ok(consumer)
}

/// Digests of the parts of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    pub key: [u8; 16],
    /// A tombstone has a different digest from an empty value.
    pub value: [u8; 16],
    /// Names and values, in their order.
    pub headers: [u8; 16],
}

/// The fingerprint of the record that the relay publishes for a row.
pub fn of_event<E: Event>(
    event: &E,
    templates: &[HeaderTemplate],
    record_bytes_max: usize,
) -> Result<Fingerprint, Rejection> {
    let record = record::record(event, templates, record_bytes_max)?;
    Ok(fingerprint(Some(record.key), record.value, Some(&record.headers)))
}

fn fingerprint(key: Option<&[u8]>, value: Option<&[u8]>, headers: Option<&impl Headers>) -> Fingerprint {
    Fingerprint {
        key: digest([key]),
        value: digest([value]),
        headers: digest(
            headers
                .into_iter()
                .flat_map(Headers::iter)
                .flat_map(|header| [Some(header.key.as_bytes()), header.value]),
        ),
    }
}

/// A part that is missing differs from an empty one, and no two lists of parts have the same bytes.
fn digest<'a>(parts: impl IntoIterator<Item = Option<&'a [u8]>>) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        let length = part.map_or(u64::MAX, |bytes| bytes.len() as u64);
        hash.update(&length.to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    let mut half = [0; 16];
    half.copy_from_slice(&hash.finish()[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Property;
    use rdkafka::message::{Header, OwnedHeaders};

    #[test]
    fn librdkafka_accepts_the_sizes_of_large_records_and_of_small_responses() {
        for sizes in [
            &[("message.max.bytes", "10485760")][..],
            &[("message.max.bytes", "1000000000")],
            &[("message.max.bytes", "10485760"), ("receive.message.max.bytes", "5000000")],
            &[("receive.message.max.bytes", "500000")],
        ] {
            let property =
                |(name, value): &(&str, &str)| (name.to_string(), Property::Plain(value.to_string()));
            let properties = sizes.iter().map(property).collect();
            let bootstrap_servers = "127.0.0.1:1".to_owned();
            let kafka = Kafka { bootstrap_servers, properties, oauth: None, aws: None };
            let made = TopicReader::new(&kafka, "event_id");
            assert!(made.is_ok(), "{sizes:?}: {}", made.err().unwrap());
        }
    }

    fn part(next: i64, end: i64) -> PartitionRead {
        PartitionRead { next, ..PartitionRead::new(0, 0, end) }
    }

    #[test]
    fn record_before_the_range_is_read_too() {
        let first = |low, start, end| {
            let part = PartitionRead::new(low, start, end);
            (part.next, part.is_truncated)
        };
        assert_eq!(first(0, 0, 8), (0, false));
        assert_eq!(first(0, 5, 8), (4, false));
        assert_eq!(first(0, 8, 8), (7, false), "no record is in the range");
        assert_eq!(first(3, 3, 8), (3, true));
        assert_eq!(first(3, 1, 8), (3, true), "records expired meanwhile");
        assert_eq!(first(3, 4, 8), (3, false));
        assert_eq!(first(8, 8, 8), (8, true));
    }

    #[test]
    fn records_of_the_range_are_taken_once() {
        let mut part = part(5, 8);
        assert!(!part.take(4, 1), "before the range");
        assert!(part.take(5, 2) && !part.take(5, 2));
        assert_eq!((part.left(), part.has_gaps, part.first_us), (2, false, Some(2)));
        assert!(part.take(7, 3) && part.has_gaps && part.is_done());
        assert!(!part.take(8, 4), "after the range");
        assert_eq!(part.left(), 0);
    }

    #[test]
    fn record_after_the_end_ends_the_range() {
        let mut part = part(5, 8);
        assert!(!part.take(9, 1) && part.is_done() && part.has_gaps);
    }

    #[test]
    fn every_difference_changes_the_digest() {
        let headers = |list: &[(&str, Option<&str>)]| {
            let all = list
                .iter()
                .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: *value }));
            fingerprint(None, None, Some(&all)).headers
        };
        let lists = [
            headers(&[]),
            headers(&[("a", None)]),
            headers(&[("a", Some(""))]),
            headers(&[("a", Some("b"))]),
            headers(&[("ab", Some(""))]),
            headers(&[("a", Some("b")), ("c", Some("d"))]),
            headers(&[("c", Some("d")), ("a", Some("b"))]),
        ];
        for (at, digest) in lists.iter().enumerate() {
            assert!(!lists[..at].contains(digest), "{at}");
        }
        let value = |value| fingerprint(None, value, None::<&OwnedHeaders>).value;
        assert_ne!(value(None), value(Some(b"")));
        assert_eq!(headers(&[]), fingerprint(None, None, None::<&OwnedHeaders>).headers);
    }
}
