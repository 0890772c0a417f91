//! A producer and limits for tests of the parts of a relay.

use crate::Limits;
use crate::OnRejected;
use crate::event::Event;
use crate::failure::Failure;
use crate::publisher::{DeliveryReport, Producer, Refusal};
use std::time::Duration;

/// Accepts rows and never reports them.
#[derive(Default)]
pub struct Silent(usize);

impl Producer for Silent {
    async fn lookup(&self, _: &str) -> Result<u32, Failure> {
        Ok(1)
    }
    fn send<E: Event>(&mut self, _: u32, _: &str, _: u32, _: &E) -> Result<(), Refusal> {
        self.0 += 1;
        Ok(())
    }
    async fn leaders(&self, _: &str) -> Result<Vec<Option<i32>>, Failure> {
        Ok(vec![Some(1)])
    }
    async fn reach_leader(&self, _: &str, _: u32) -> Result<(), Failure> {
        Ok(())
    }
    fn has_failed(&self) -> bool {
        false
    }
    fn refusal(&self) -> Option<Failure> {
        None
    }
    fn last_error(&self, max_age: Duration) -> Option<String> {
        Some(format!("no broker for {max_age:?}"))
    }
    fn drain(&mut self, _: &mut Vec<DeliveryReport>) {}
    async fn quiet(&mut self, _: bool) {
        std::future::pending::<()>().await;
    }
    async fn take_back(&mut self) {}
    async fn drained(&mut self) {
        std::future::pending::<()>().await;
    }
    fn abandon(self) {}
}

/// Small limits, without flows.
pub fn limits() -> Limits {
    Limits {
        batch_rows: 10,
        batch_bytes: 1_000,
        publish_timeout: Duration::from_secs(30),
        takeover_timeout: Duration::from_secs(10),
        flow_window: Duration::ZERO,
        flow_gap: Duration::from_millis(30),
        flow_records: 64,
        poll_interval: Duration::from_secs(1),
        look_every: Duration::from_millis(5),
        on_rejected: OnRejected::default(),
        rejections_before_hold: 10,
    }
}
