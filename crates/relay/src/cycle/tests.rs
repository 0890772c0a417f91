//! The gate and its keeper, with a cluster whose probes always succeed.

use crate::Limits;
use crate::Relay;
use crate::cycle::session::tests::LateReporter;
use crate::event::Event;
use crate::failure::Failure;
use crate::health::stats::Stats;
use crate::holds::prober::keep_gate;
use crate::lanes::marks::Marks;
use crate::publisher::{Judged, Publisher, fixture};
use crate::reason::TOO_FEW_REPLICAS;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[derive(Default)]
pub(crate) struct Answering {
    probes: Cell<u32>,
}

impl Publisher for Answering {
    type Producer = LateReporter;

    async fn open(&self) -> Result<LateReporter, Failure> {
        Ok(LateReporter::default())
    }
    async fn judge<E: Event>(&self, _: &str, _: u32, _: &[&E]) -> Judged {
        Judged { acknowledged: 0, failure: None }
    }
    async fn probe(&self) -> Result<(), Failure> {
        self.probes.set(self.probes.get() + 1);
        Ok(())
    }
    async fn open_for_probes(&self) -> Result<LateReporter, Failure> {
        self.open().await
    }
}

/// A relay with small limits.
pub(crate) fn relay_with<P: Publisher>(publisher: P) -> Relay<P> {
    let second = Duration::from_secs(1);
    let limits = Limits { publish_timeout: second, takeover_timeout: second, ..fixture::limits() };
    let template = "events.{aggregate_type}".parse().unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    Relay::new(publisher, template, limits, marks, Arc::new(Stats::new()))
}

fn relay() -> Rc<Relay<Answering>> {
    Rc::new(relay_with(Answering::default()))
}

fn not_ready(relay: &Relay<Answering>) -> Option<String> {
    relay.stats.kafka.fault()
}

/// Runs the test while `keep_gate` runs.
async fn while_gate_is_kept(relay: &Rc<Relay<Answering>>, test: impl Future<Output = ()>) {
    tokio::select! {
        () = keep_gate(Rc::clone(relay), fastrand::Rng::with_seed(1)) => unreachable!(),
        () = test => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_no_probe_detects_lasts_until_a_row_is_acknowledged() {
    let relay = relay();
    while_gate_is_kept(&relay, async {
        relay.gate.opened().await;
        assert_eq!(not_ready(&relay), None, "a probe is enough at the start");
        let before = Instant::now();
        let probes = relay.publisher.probes.get();
        // Each session fails, and each probe succeeds.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            relay.gate.close(TOO_FEW_REPLICAS.failure("nothing is stored"));
            relay.gate.opened().await;
            assert!(not_ready(&relay).unwrap().contains("too-few-replicas"));
            assert!(relay.health.kafka.lasts().is_some_and(|lasts| lasts >= begun.elapsed()));
            sleep(Duration::from_millis(10)).await;
        }
        let probes = relay.publisher.probes.get() - probes;
        assert!((20..200).contains(&probes), "the gate is opened about once a second: {probes}");
        assert!(!relay.gate.acknowledged(before), "that batch was sent before");
        assert!(relay.gate.acknowledged(Instant::now()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_after_a_while_if_no_rows_can_prove_it() {
    let relay = relay();
    while_gate_is_kept(&relay, async {
        relay.gate.opened().await;
        relay.stats.workers_busy.inc();
        relay.gate.close(TOO_FEW_REPLICAS.failure("nothing is stored"));
        sleep(Duration::from_secs(60)).await;
        assert!(relay.gate.is_open() && not_ready(&relay).is_some(), "a worker is still trying");
        relay.stats.workers_busy.dec();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(not_ready(&relay), None);
        assert!(relay.health.kafka.lasts().is_none());
    })
    .await;
}
