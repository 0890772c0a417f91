//! The gate and its keeper, with a cluster whose probes always succeed, and what a settlement confirms.

use super::*;
use crate::batch::Fate;
use crate::fixture::{self, FakeCluster, Row};
use crate::holds::prober::keep_gate;
use crate::reason::{INVALID_RECORD, TOO_FEW_REPLICAS};
use crate::{Limits, Marks, OnRejected, ReadEnd, Stats};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// A relay with small limits.
pub(crate) fn relay_with(cluster: FakeCluster) -> Relay<Rc<FakeCluster>> {
    let second = Duration::from_secs(1);
    let limits = Limits { publish_timeout: second, takeover_timeout: second, ..fixture::limits() };
    let template = "events.{aggregate_type}".parse().unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    Relay::new(Rc::new(cluster), template, limits, marks, Arc::new(Stats::new()))
}

fn relay() -> Rc<Relay<Rc<FakeCluster>>> {
    Rc::new(relay_with(FakeCluster::default()))
}

fn not_ready(relay: &Relay<Rc<FakeCluster>>) -> Option<String> {
    relay.stats.kafka.fault()
}

/// Runs the test while `keep_gate` runs.
async fn while_gate_is_kept(relay: &Rc<Relay<Rc<FakeCluster>>>, test: impl Future<Output = ()>) {
    tokio::select! {
        () = keep_gate(Rc::clone(relay), fastrand::Rng::with_seed(1)) => unreachable!(),
        () = test => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_no_probe_detects_lasts_until_a_row_is_acknowledged() {
    let relay = relay();
    while_gate_is_kept(&relay, async {
        relay.kafka.gate.opened().await;
        assert_eq!(not_ready(&relay), None, "a probe is enough at the start");
        let before = Instant::now();
        let probes = relay.kafka.publisher.probes.get();
        // Each session fails, and each probe succeeds.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            relay.kafka.gate.close(TOO_FEW_REPLICAS.failure("nothing is stored"));
            relay.kafka.gate.opened().await;
            assert!(not_ready(&relay).unwrap().contains("too-few-replicas"));
            assert!(relay.kafka.gate.kafka.lasts().is_some_and(|lasts| lasts >= begun.elapsed()));
            sleep(Duration::from_millis(10)).await;
        }
        let probes = relay.kafka.publisher.probes.get() - probes;
        assert!((20..200).contains(&probes), "the gate is opened about once a second: {probes}");
        relay.kafka.gate.acknowledged(before);
        assert!(not_ready(&relay).is_some(), "that batch was sent before");
        relay.kafka.gate.acknowledged(Instant::now());
        assert_eq!(not_ready(&relay), None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_after_a_while_if_no_rows_can_prove_it() {
    let relay = relay();
    while_gate_is_kept(&relay, async {
        relay.kafka.gate.opened().await;
        relay.stats.workers_busy.inc();
        relay.kafka.gate.close(TOO_FEW_REPLICAS.failure("nothing is stored"));
        sleep(Duration::from_secs(60)).await;
        assert!(relay.kafka.gate.is_open() && not_ready(&relay).is_some(), "a worker is still trying");
        relay.stats.workers_busy.dec();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(not_ready(&relay), None);
        assert!(relay.kafka.gate.kafka.lasts().is_none());
    })
    .await;
}

/// Rows that were recorded, also during a flow, leave the memory, although a row that Kafka refused could not be recorded.
#[test]
fn only_rows_that_were_not_recorded_are_remembered() {
    for (missed, unrecorded) in [(false, [false; 3]), (true, [true; 3])] {
        let relay = relay();
        let rows = [Row(1), Row(2), Row(3)];
        let mut batch = Batch::new(OnRejected::default());
        batch.rows_mut().extend([Row(1), Row(2), Row(3), Row(4)]);
        batch.appended(ReadEnd::Complete);
        (0..3).for_each(|index| batch.set(index, Fate::Acknowledged));
        batch.rejected(3, "events.order", INVALID_RECORD.rejection("invalid"));
        let snapshot = relay.lanes.marks.borrow().snapshot(&[rows[0].lane()]);
        let flow = Flow { recorded: 2, missed, ..Flow::default() };
        let settled = with_flow(Settled::Only(HashSet::from([3])), &batch, &flow);
        let cycle = confirm(&relay, &snapshot, &[rows[0].lane()], &batch, &settled);
        assert_eq!((cycle.locked_out, cycle.rejected), (true, vec![rows[0].lane()]));
        let acknowledged = relay.memory.acknowledged.borrow();
        assert_eq!(rows.map(|row| acknowledged.contains(&row)), unrecorded);
    }
}
