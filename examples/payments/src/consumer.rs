//! The consumer: reads the events, and commits an offset only when what stands before it had its effect.

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

/// A transaction has at most so many records, and waits for no further ones longer than this.
const BATCH: usize = 200;
const BATCH_WITHIN: Duration = Duration::from_millis(20);
const AFTER_ERROR: Duration = Duration::from_millis(200);

/// Runs until it is told to stop.
pub async fn run(
    bootstrap: &str,
    session_timeout: Duration,
    balances: &Balances,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", GROUP)
        .set("enable.auto.commit", "false") // an offset is committed behind the effect, by hand
        .set("auto.offset.reset", "earliest") // else a group without offsets skips what is there
        .set("session.timeout.ms", session_timeout.as_millis().to_string())
        .set("heartbeat.interval.ms", (session_timeout / 4).as_millis().to_string())
        .set("reconnect.backoff.max.ms", "1000")
        .set_log_level(RDKafkaLogLevel::Critical)
        .create()
        .context("the consumer")?;
    consumer.subscribe(&[TOPIC])?;
    tokio::pin!(stop);
    loop {
        let batch = tokio::select! {
            batch = next_batch(&consumer) => batch?,
            () = &mut stop => return Ok(()),
        };
        balances.apply(&batch.records).await?;
        // Not waited for: an offset that is not committed is a duplicate later, and nothing else.
        if let Err(error) = consumer.commit(&batch.offsets()?, CommitMode::Async) {
            eprintln!("the offsets were not committed: {error}");
        }
    }
}

/// Records, and behind which offset of each partition they end.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    next: HashMap<i32, i64>,
}

impl Batch {
    fn add(&mut self, message: &BorrowedMessage<'_>) {
        self.next.insert(message.partition(), message.offset() + 1);
        self.records.push(record(message));
    }

    fn offsets(&self) -> Result<TopicPartitionList, KafkaError> {
        let mut offsets = TopicPartitionList::new();
        for (partition, next) in &self.next {
            offsets.add_partition_offset(TOPIC, *partition, Offset::Offset(*next))?;
        }
        Ok(offsets)
    }
}

/// Waits for a record, and takes along what comes right behind it.
async fn next_batch(consumer: &StreamConsumer) -> anyhow::Result<Batch> {
    let mut batch = Batch::default();
    while batch.records.is_empty() {
        match consumer.recv().await {
            Ok(message) => batch.add(&message),
            Err(error) => weather(consumer, error).await?,
        }
    }
    let until = Instant::now() + BATCH_WITHIN;
    while batch.records.len() < BATCH
        && let Ok(received) = timeout_at(until, consumer.recv()).await
    {
        match received {
            Ok(message) => batch.add(&message),
            Err(error) => weather(consumer, error).await?,
        }
    }
    Ok(batch)
}

/// The client library comes back by itself from all errors but fatal ones.
async fn weather(consumer: &StreamConsumer, error: KafkaError) -> anyhow::Result<()> {
    if let Some((code, _)) = consumer.client().fatal_error() {
        anyhow::bail!("the Kafka client has ended: {code}");
    }
    eprintln!("Kafka: {error}");
    tokio::time::sleep(AFTER_ERROR).await;
    Ok(())
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let place = format!("{}/{}/{}", message.topic(), message.partition(), message.offset());
    let header = |name| message.headers()?.iter().find(|header| header.key == name)?.value;
    let event_id = header("event_id").and_then(|id| std::str::from_utf8(id).ok());
    let payment = match event_id {
        Some(event_id) => Payment::read(event_id, message.payload().unwrap_or_default()),
        None => Err("no header event_id".to_owned()),
    };
    Record { place, payment }
}
