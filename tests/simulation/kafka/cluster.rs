//! A relay's way to the cluster.

use super::broker::Broker;
use super::producer::SimProducer;
use crate::event::topic_number;
use crate::plan::Sabotage;
use crate::process::Process;
use outbox_relay::relay::event::Event;
use outbox_relay::relay::failure::{Failure, FailureKind, Rejection};
use outbox_relay::relay::publisher::{Producer, Publisher, Refusal};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The client gives up what has no answer for so long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A row's verdict is waited for so long.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(8);

/// A relay's way to the cluster.
#[derive(Clone)]
pub struct SimCluster {
    pub broker: Rc<Broker>,
    pub process: Rc<Process>,
}

impl SimCluster {
    pub(super) async fn round_trip(&self) -> Result<(), Failure> {
        self.broker.world.pass(4).await;
        if !self.broker.is_away() && !self.process.has_lost_kafka() {
            return Ok(());
        }
        sleep(ANSWER_TIMEOUT).await;
        Err(Failure { kind: FailureKind::Cluster, reason: "brokers-down", error: "away".to_owned() })
    }

    /// What the cluster says of a topic.
    pub(super) async fn describe(&self, topic: &str) -> Result<u32, Failure> {
        self.round_trip().await?;
        if self.broker.knows(topic_number(topic)) { Ok(super::broker::PARTITIONS as u32) } else { Err(missing()) }
    }
}

pub(super) fn missing() -> Failure {
    Failure { kind: FailureKind::Topic, reason: "unknown-topic", error: "missing".to_owned() }
}

impl Publisher for SimCluster {
    type Producer = SimProducer;

    async fn open(&self) -> Result<SimProducer, Failure> {
        self.broker.world.pass(4).await;
        Ok(SimProducer::new(self.clone()))
    }

    async fn judge<E: Event>(&self, topic: &str, partition: u32, event: &E) -> Result<(), Failure> {
        if self.broker.world.breaks(Sabotage::GuiltyByBatch) {
            let error = "refused with its batch".to_owned();
            return Err(Failure { kind: FailureKind::Row, reason: "invalid-record", error });
        }
        let mut alone = self.open().await?;
        match alone.send(0, topic, partition, event) {
            Err(Refusal::Session(failure)) => return Err(failure),
            Err(Refusal::Row(rejection)) => {
                let Rejection { reason, error } = rejection;
                return Err(Failure { kind: FailureKind::Row, reason, error });
            }
            Ok(()) => {}
        }
        if timeout(JUDGE_TIMEOUT, alone.drained()).await.is_err() {
            return Err(Failure::unknown("no verdict in time"));
        }
        let mut reports = Vec::new();
        alone.drain(&mut reports);
        reports.pop().unwrap().outcome
    }

    async fn probe(&self) -> Result<(), Failure> {
        self.round_trip().await
    }

    async fn probe_topic(&self, topic: &str) -> Result<(), Failure> {
        self.describe(topic).await.map(|_| ())
    }
}
