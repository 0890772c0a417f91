//! Reads whole topics after a measurement and checks every record.

use crate::checking::rows::{Arrival, Rows};
use crate::error::BenchError;
use crate::kafka::consume::{Consumer, View};
use crate::place::Route;
use crate::postgres::load::Shape;
use outbox_relay::config;
use outbox_relay::kafka::record::EVENT_ID;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::checking::checker::Verdict;
pub use crate::checking::rows::Committed;

/// Reads topics from beginning to end and compares the records. Use it after a measurement, because it needs a lot of
/// CPU.
///
/// # Errors
///
/// If Kafka does not return all records.
pub async fn read(
    kafka: &config::Kafka,
    route: &Route,
    shape: &Shape,
    committed: &Committed,
) -> Result<Verdict, BenchError> {
    read_as(kafka, route, shape, committed, EVENT_ID).await
}

/// The same, with another header for the event id.
///
/// # Errors
///
/// As for [`read`].
pub async fn read_as(
    kafka: &config::Kafka,
    route: &Route,
    shape: &Shape,
    committed: &Committed,
    header: &'static str,
) -> Result<Verdict, BenchError> {
    let rows = Rows::new(shape, &route.topics, committed);
    let (kafka, topics) = (kafka.clone(), route.topics.clone());
    let stop = StopOnDrop::default();
    let stopped = Arc::clone(&stop.0);
    let reading = tokio::task::spawn_blocking(move || {
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let consumer = Consumer::of(&kafka, &topics)?;
        let mut checker = rows.checker();
        consumer.read_to_end(&stopped, |record| checker.take(rows.recognize(&arrival(record, header))))?;
        Ok(checker.verdict())
    });
    match reading.await {
        Ok(verdict) => verdict.map_err(BenchError::Kafka),
        Err(error) => Err(BenchError::System { doing: "verifying", source: std::io::Error::other(error) }),
    }
}

fn arrival<'a>(record: &'a View<'_>, header: &str) -> Arrival<'a> {
    Arrival {
        topic: record.topic(),
        partition: record.partition(),
        key: record.key().unwrap_or_default(),
        payload: record.payload().unwrap_or_default(),
        event_id: record.header(header).unwrap_or_default(),
    }
}

/// Tells a thread to stop when nothing waits for it any more.
#[derive(Default)]
pub(crate) struct StopOnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
