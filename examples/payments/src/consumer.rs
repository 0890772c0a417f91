//! The consumer: reads events, and commits an offset only after all records before it have had their effect.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::time::{Instant, timeout_at};

use crate::balances::{Balances, Payment, Record};

pub const GROUP: &str = "balances";
pub const TOPIC: &str = "events.payment";

/// The maximum number of records in a transaction, and how long it waits for more.
const BATCH: usize = 200;
const BATCH_WITHIN: Duration = Duration::from_millis(20);
const AFTER_ERROR: Duration = Duration::from_millis(200);

/// Runs until `stop`.
pub async fn run(
    bootstrap: &str,
    session_timeout: Duration,
    balances: &Balances,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", GROUP)
        .set("enable.auto.commit", "false") // offsets are committed manually, after the effect
        .set("auto.offset.reset", "earliest") // otherwise a new group would skip existing records
        .set("session.timeout.ms", session_timeout.as_millis().to_string())
        .set("heartbeat.interval.ms", (session_timeout / 4).as_millis().to_string())
        .set("reconnect.backoff.max.ms", "1000")
        .set_log_level(RDKafkaLogLevel::Critical)
        .create()
        .context("creating the consumer")?;
    consumer.subscribe(&[TOPIC])?;
    tokio::pin!(stop);
    loop {
        let batch = tokio::select! {
            batch = next_batch(&consumer) => batch?,
            () = &mut stop => return Ok(()),
        };
        balances.apply(&batch.records).await?;
        // Not awaited, because an uncommitted offset causes only a duplicate later.
        if let Err(error) = consumer.commit(&batch.offsets()?, CommitMode::Async) {
            eprintln!("the offsets were not committed: {error}");
        }
    }
}

/// Records, and the offset after the last one of each partition.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    next: HashMap<i32, i64>,
}

impl Batch {
    fn add(&mut self, message: &BorrowedMessage<'_>) {
        self.next.insert(message.partition(), message.offset() + 1);
        // The topic of the aggregate has all types of its events.
        if header(message, "event_type").is_none_or(|event_type| event_type == b"PaymentMade") {
            self.records.push(record(message));
        }
    }

    fn offsets(&self) -> Result<TopicPartitionList, KafkaError> {
        let mut offsets = TopicPartitionList::new();
        for (partition, next) in &self.next {
            offsets.add_partition_offset(TOPIC, *partition, Offset::Offset(*next))?;
        }
        Ok(offsets)
    }
}

/// Waits for a record, and adds the records that follow immediately.
async fn next_batch(consumer: &StreamConsumer) -> anyhow::Result<Batch> {
    let mut batch = Batch::default();
    while batch.next.is_empty() {
        match consumer.recv().await {
            Ok(message) => batch.add(&message),
            Err(error) => handle_error(consumer, error).await?,
        }
    }
    let until = Instant::now() + BATCH_WITHIN;
    while batch.records.len() < BATCH
        && let Ok(received) = timeout_at(until, consumer.recv()).await
    {
        match received {
            Ok(message) => batch.add(&message),
            Err(error) => handle_error(consumer, error).await?,
        }
    }
    Ok(batch)
}

/// The client library recovers from all errors except fatal ones.
async fn handle_error(consumer: &StreamConsumer, error: KafkaError) -> anyhow::Result<()> {
    if let Some((code, _)) = consumer.client().fatal_error() {
        anyhow::bail!("the Kafka client has ended: {code}");
    }
    eprintln!("Kafka: {error}");
    tokio::time::sleep(AFTER_ERROR).await;
    Ok(())
}

fn header<'a>(message: &'a BorrowedMessage<'_>, name: &str) -> Option<&'a [u8]> {
    message.headers()?.iter().find(|header| header.key == name)?.value
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let place = format!("{}/{}/{}", message.topic(), message.partition(), message.offset());
    let event_id = header(message, "event_id").and_then(|id| std::str::from_utf8(id).ok());
    let payment = match event_id {
        Some(event_id) => Payment::read(event_id, message.payload().unwrap_or_default()),
        None => Err("the header event_id is missing".to_owned()),
    };
    let kept = |bytes: Option<&[u8]>| bytes.filter(|_| payment.is_err()).map(<[u8]>::to_vec);
    let (key, value) = (kept(message.key()), kept(message.payload()));
    Record { place, payment, key, value }
}
