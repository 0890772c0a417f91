//! Publishes events to a topic of the operator's choice, for `replay --to-topic`.

use crate::cluster::KafkaCluster;
use crate::errors::reason;
use crate::producer::{KafkaProducer, not_sent};
use rdkafka::error::RDKafkaErrorCode;
use relay::failure::KafkaFailure;
use relay::outbox::Event;
use relay::partition;
use relay::publisher::{DeliveryReport, Producer, Publisher};
use relay::reason::{NO_ANSWER, SMALLER_BATCHES};
use std::time::Duration;
use tokio::time::timeout;

/// How long to wait for the next acknowledgement of a batch.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(60);
/// How long to wait for the other reports after a failure.
const COLLECTED_WITHIN: Duration = Duration::from_secs(5);

/// A producer for one topic. Events of a key stay in order. After a failed call it must not be used again.
pub struct Copier {
    producer: KafkaProducer,
    pub topic: String,
    /// Whether each partition has acknowledged a record. The first one of a partition is sent alone, as in a session.
    primed: Vec<bool>,
    in_flight: u32,
    pub cluster: KafkaCluster,
}

#[derive(Debug)]
pub struct Stopped {
    /// How many events of the batch, from the first, Kafka has acknowledged.
    pub acknowledged: usize,
    pub failure: KafkaFailure,
}

impl Copier {
    /// Connects, and checks that the topic exists and that each of its partitions has a leader. Only a record shows whether
    /// the user may publish, and publishing begins with a single one.
    pub async fn open(cluster: KafkaCluster, topic: &str) -> Result<Copier, KafkaFailure> {
        let producer = connect(&cluster, topic).await?;
        let leaders = producer.leaders(topic).await?;
        if let Some(partition) = leaders.iter().position(Option::is_none) {
            let error = format!("partition {partition} of topic {topic} has no leader");
            return Err(reason(RDKafkaErrorCode::LeaderNotAvailable).failure(error));
        }
        let primed = vec![false; leaders.len()];
        Ok(Copier { producer, topic: topic.to_owned(), primed, in_flight: 0, cluster })
    }

    /// Publishes events in order, and returns when Kafka has acknowledged all of them. If the topic refuses a request for its
    /// size, continues with another producer of the cluster, which sends smaller ones.
    pub async fn publish<E: Event>(&mut self, events: &[&E]) -> Result<(), Stopped> {
        let mut acknowledged = 0;
        while let Err(stopped) = self.send_all(&events[acknowledged..]).await {
            acknowledged += stopped.acknowledged;
            let connected = if stopped.failure.reason == SMALLER_BATCHES.word {
                connect(&self.cluster, &self.topic).await
            } else {
                Err(stopped.failure)
            };
            self.producer = connected.map_err(|failure| Stopped { acknowledged, failure })?;
            self.primed.fill(false);
        }
        Ok(())
    }

    async fn send_all<E: Event>(&mut self, events: &[&E]) -> Result<(), Stopped> {
        let mut acknowledged = 0;
        for (place, event) in events.iter().enumerate() {
            let partition = partition::of(event.key(), self.primed.len() as u32);
            let is_primed = self.primed[partition as usize];
            if !is_primed {
                acknowledged += self.wait(acknowledged).await?;
            }
            if let Err(refusal) = self.producer.send(place as u32, &self.topic, partition, *event) {
                // The earlier events are still acknowledged, unless they fail too.
                acknowledged += self.wait(acknowledged).await?;
                return Err(Stopped { acknowledged, failure: not_sent(refusal) });
            }
            self.in_flight += 1;
            if !is_primed {
                acknowledged += self.wait(acknowledged).await?;
                self.primed[partition as usize] = true;
            }
        }
        self.wait(acknowledged).await.map(drop)
    }

    /// Waits for everything in flight, and returns the number of acknowledgements.
    async fn wait(&mut self, before: usize) -> Result<usize, Stopped> {
        let sent = std::mem::take(&mut self.in_flight) as usize;
        let mut reports = Vec::new();
        // Under a quota, a batch may take longer than this.
        let in_time = loop {
            let reported = timeout(ACKNOWLEDGED_WITHIN, self.producer.wait_until_quiet(true)).await;
            self.producer.take_reports(&mut reports);
            if reported.is_err() || reports.len() >= sent || self.producer.has_failed() {
                break reported;
            }
        };
        if self.producer.has_failed() {
            // No record in flight may follow an event that is sent again.
            _ = timeout(COLLECTED_WITHIN, self.producer.all_reported()).await;
            self.producer.withdraw().await;
        }
        self.producer.take_reports(&mut reports);
        reports.sort_by_key(|report| report.index);
        let acknowledged = acknowledged_from(before, &reports);
        if acknowledged == sent {
            return Ok(acknowledged);
        }
        let failures = reports.into_iter().filter_map(|DeliveryReport { outcome, .. }| outcome.err());
        // A refused request ends the producer, so earlier events of other partitions fail too.
        let failed = failures.min_by_key(|failure| failure.reason != SMALLER_BATCHES.word);
        let silent = || {
            let why =
                if in_time.is_err() { format!(" within {ACKNOWLEDGED_WITHIN:?}") } else { String::new() };
            NO_ANSWER.failure(format!("Kafka did not acknowledge the records{why}"))
        };
        Err(Stopped { acknowledged: before + acknowledged, failure: failed.unwrap_or_else(silent) })
    }
}

/// A producer that has looked up the topic, and sends requests that are not above its known limit.
async fn connect(cluster: &KafkaCluster, topic: &str) -> Result<KafkaProducer, KafkaFailure> {
    let mut producer = cluster.open().await?;
    let mut found = producer.lookup(topic).await;
    if found.as_ref().is_err_and(|failure| failure.reason == SMALLER_BATCHES.word) {
        producer = cluster.open().await?;
        found = producer.lookup(topic).await;
    }
    found.map(|_| producer)
}

/// How many events from this one on are acknowledged. The first one without a report ends the count.
fn acknowledged_from(first: usize, reports: &[DeliveryReport]) -> usize {
    let is_acknowledged = |(place, report): &(usize, &DeliveryReport)| {
        report.index as usize == *place && report.outcome.is_ok()
    };
    (first..).zip(reports).take_while(is_acknowledged).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_after_one_without_an_acknowledgement_are_not_counted() {
        let acknowledged = |index| DeliveryReport { index, outcome: Ok(()) };
        let failed = DeliveryReport { index: 5, outcome: Err(KafkaFailure::unknown("gone")) };
        assert_eq!(acknowledged_from(3, &[3, 4, 5].map(acknowledged)), 3);
        assert_eq!(acknowledged_from(3, &[3, 4, 6].map(acknowledged)), 2, "5 has no report");
        assert_eq!(acknowledged_from(3, &[4, 5].map(acknowledged)), 0);
        assert_eq!(acknowledged_from(3, &[acknowledged(3), acknowledged(4), failed, acknowledged(6)]), 2);
    }
}
