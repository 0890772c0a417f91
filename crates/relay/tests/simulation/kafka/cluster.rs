//! A relay's access to the cluster.

use super::broker::{Broker, Place};
use super::producer::SimProducer;
use crate::event::topic_number;
use crate::plan::Sabotage;
use crate::process::Process;
use relay::failure::{FailureKind, KafkaFailure, Rejection};
use relay::outbox::Event;
use relay::publisher::{DeliveryReport, Judged, NotSent, Producer, Publisher};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The client gives up a request after this time without an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The client gives up a question to a leader after this time.
const LEADER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A relay's access to the cluster.
#[derive(Clone)]
pub struct SimCluster {
    pub broker: Rc<Broker>,
    pub process: Rc<Process>,
}

impl SimCluster {
    pub(super) async fn round_trip(&self) -> Result<(), KafkaFailure> {
        self.broker.world.pass(4).await;
        if !self.broker.is_unavailable() && !self.process.has_lost_kafka() {
            return Ok(());
        }
        sleep(ANSWER_TIMEOUT).await;
        Err(failure(FailureKind::Cluster, "brokers-down"))
    }

    /// Asks the leader of a partition. A leader that lacks replicas answers, a lost leader does not. The number of a
    /// blocked partition determines which of the two applies.
    pub(super) async fn reach(&self, place: Place) -> Result<(), KafkaFailure> {
        self.round_trip().await?;
        let gone = place.partition == 0 && self.broker.is_blocked(place);
        if gone || self.process.has_lost_leader(place) {
            sleep(LEADER_TIMEOUT).await;
            return Err(KafkaFailure::unknown("the leader does not answer"));
        }
        Ok(())
    }

    /// The cluster's description of a topic.
    pub(super) async fn describe(&self, topic: &str) -> Result<u32, KafkaFailure> {
        self.round_trip().await?;
        if self.broker.knows(topic_number(topic)) {
            Ok(super::broker::PARTITIONS as u32)
        } else {
            Err(missing())
        }
    }
}

/// A failure with this reason.
pub(super) fn failure(kind: FailureKind, reason: &'static str) -> KafkaFailure {
    KafkaFailure { kind, reason, error: "in the simulation".to_owned() }
}

pub(super) fn missing() -> KafkaFailure {
    failure(FailureKind::Topic, "unknown-topic")
}

impl Publisher for SimCluster {
    type Producer = SimProducer;

    async fn open(&self) -> Result<SimProducer, KafkaFailure> {
        self.round_trip().await?;
        Ok(SimProducer::new(self.clone()))
    }

    async fn judge<E: Event>(
        &self,
        topic: &str,
        partition: u32,
        rows: &[&E],
        patience: Duration,
        may_send: impl Fn() -> bool,
    ) -> Judged {
        if self.broker.world.breaks(Sabotage::RejectedWithBatch) {
            return refused(failure(FailureKind::Row, "invalid-record"));
        }
        let mut alone = match self.open().await {
            Ok(producer) => producer,
            Err(failure) => return refused(failure),
        };
        let (first, others) = rows.split_at(rows.len().min(1));
        if !may_send() {
            return Judged { acknowledged: 0, failure: None };
        }
        let judged = publish(&mut alone, topic, partition, first, patience).await;
        if judged.failure.is_some() || others.is_empty() || !may_send() {
            return judged;
        }
        let behind = publish(&mut alone, topic, partition, others, patience).await;
        Judged { acknowledged: first.len() + behind.acknowledged, ..behind }
    }

    async fn probe(&self) -> Result<(), KafkaFailure> {
        self.round_trip().await
    }

    async fn open_for_probes(&self) -> Result<SimProducer, KafkaFailure> {
        self.broker.world.pass(4).await;
        Ok(SimProducer::with_gaps(self.clone()))
    }
}

fn refused(failure: KafkaFailure) -> Judged {
    Judged { acknowledged: 0, failure: Some(failure) }
}

/// Publishes rows on a producer that has no other rows, and returns how many were acknowledged.
async fn publish<E: Event>(
    producer: &mut SimProducer,
    topic: &str,
    partition: u32,
    rows: &[&E],
    patience: Duration,
) -> Judged {
    let mut outcomes = vec![Err(KafkaFailure::unknown("no report")); rows.len()];
    for (index, row) in rows.iter().enumerate() {
        match producer.send(index as u32, topic, partition, *row) {
            Ok(()) => continue,
            Err(NotSent::Session(failure)) => outcomes[index] = Err(failure),
            Err(NotSent::Row(rejection)) => {
                let Rejection { reason, error } = rejection;
                outcomes[index] = Err(KafkaFailure { kind: FailureKind::Row, reason, error });
            }
        }
        break;
    }
    // If the verdict does not arrive in time, unreported rows stay unknown.
    let _ = timeout(patience, producer.all_reported()).await;
    let mut reports = Vec::new();
    producer.take_reports(&mut reports);
    for DeliveryReport { index, outcome } in reports {
        outcomes[index as usize] = outcome;
    }
    let acknowledged = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    Judged { acknowledged, failure: outcomes.into_iter().nth(acknowledged).and_then(Result::err) }
}
