//! A Kafka cluster that acknowledges immediately.

use outbox_relay::relay::event::Event;
use outbox_relay::relay::failure::Failure;
use outbox_relay::relay::publisher::{DeliveryReport, Judged, Producer, Publisher, Refusal};

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

    async fn open(&self) -> Result<Acknowledging, Failure> {
        Ok(Acknowledging { partitions: self.partitions, reports: Vec::new() })
    }

    async fn judge<E: Event>(&self, _: &str, _: u32, rows: &[&E]) -> Judged {
        Judged { acknowledged: rows.len(), failure: None }
    }

    async fn probe(&self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Producer for Acknowledging {
    async fn lookup(&self, _: &str) -> Result<u32, Failure> {
        Ok(self.partitions)
    }

    async fn leaders(&self, _: &str) -> Result<Vec<Option<i32>>, Failure> {
        Ok(vec![Some(0); self.partitions as usize])
    }

    async fn reach_leader(&self, _: &str, _: u32) -> Result<(), Failure> {
        Ok(())
    }

    fn send<E: Event>(&mut self, index: u32, _: &str, _: u32, _: &E) -> Result<(), Refusal> {
        self.reports.push(DeliveryReport { index, outcome: Ok(()) });
        Ok(())
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn refusal(&self) -> Option<Failure> {
        None
    }

    fn drain(&mut self, reports: &mut Vec<DeliveryReport>) {
        reports.append(&mut self.reports);
    }

    async fn quiet(&mut self, _: bool) {}

    async fn take_back(&mut self) {}

    async fn drained(&mut self) {}

    fn abandon(self) {}
}
