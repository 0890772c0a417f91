//! A Kafka cluster that acknowledges immediately.

use outbox_relay::relay::event::Event;
use outbox_relay::relay::failure::KafkaFailure;
use outbox_relay::relay::publisher::{DeliveryReport, Judged, NotSent, Producer, Publisher};

/// The cluster.
pub(super) struct AtOnce {
    pub(super) partitions: u32,
}

/// Its producer. Every row is acknowledged at the next poll.
pub(super) struct Acknowledging {
    partitions: u32,
    reports: Vec<DeliveryReport>,
}

impl Publisher for AtOnce {
    type Producer = Acknowledging;

    async fn open(&self) -> Result<Acknowledging, KafkaFailure> {
        Ok(Acknowledging { partitions: self.partitions, reports: Vec::new() })
    }

    async fn judge<E: Event>(&self, _: &str, _: u32, rows: &[&E]) -> Judged {
        Judged { acknowledged: rows.len(), failure: None }
    }

    async fn probe(&self) -> Result<(), KafkaFailure> {
        Ok(())
    }
}

impl Producer for Acknowledging {
    async fn lookup(&self, _: &str) -> Result<u32, KafkaFailure> {
        Ok(self.partitions)
    }

    async fn leaders(&self, _: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
        Ok(vec![Some(0); self.partitions as usize])
    }

    async fn reach_leader(&self, _: &str, _: u32) -> Result<(), KafkaFailure> {
        Ok(())
    }

    fn send<E: Event>(&mut self, index: u32, _: &str, _: u32, _: &E) -> Result<(), NotSent> {
        self.reports.push(DeliveryReport { index, outcome: Ok(()) });
        Ok(())
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn fatal_error(&self) -> Option<KafkaFailure> {
        None
    }

    fn drain(&mut self, reports: &mut Vec<DeliveryReport>) {
        reports.append(&mut self.reports);
    }

    async fn wait_until_quiet(&mut self, _: bool) {}

    async fn withdraw(&mut self) {}

    async fn drained(&mut self) {}

    fn abandon(self) {}
}
