//! The ledger: what the writers committed, recorded independently of PostgreSQL and Kafka, and what the consumer
//! received.

use super::verdict::{Arrived, Written, compare};
use outbox_bench::checker::Verdict;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The number of latencies in the live figures.
const RECENT: usize = 2_000;

/// Shared by the writers, the consumer and the screen.
#[derive(Clone, Default)]
pub(super) struct SharedLedger(Arc<Mutex<Ledger>>);

impl SharedLedger {
    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
pub(super) struct Ledger {
    written: Vec<Written>,
    /// Events whose COMMIT was not answered.
    unsure: Vec<Written>,
    arrived: Vec<Arrived>,
    /// Committed events that have not arrived yet.
    waiting: HashMap<Uuid, Instant>,
    /// Events that arrived before their writer recorded the commit.
    early: HashMap<Uuid, Instant>,
    latencies: Vec<Duration>,
    orders: usize,
    rolled_back: usize,
    fault: Option<String>,
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) orders: usize,
    pub(super) rolled_back: usize,
    pub(super) written: usize,
    pub(super) received: usize,
    pub(super) waiting: usize,
    pub(super) latency: Latency,
}

/// The time from the answer to COMMIT until the consumer has the event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latency {
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

impl Ledger {
    /// Records events of one transaction, whose COMMIT returned at this time.
    pub(super) fn committed(&mut self, events: Vec<Written>, at: Instant) {
        for event in events {
            match self.early.remove(&event.event_id) {
                Some(_) => self.latencies.push(Duration::ZERO),
                None => _ = self.waiting.insert(event.event_id, at),
            }
            self.written.push(event);
        }
    }

    /// Records events whose COMMIT was not answered.
    pub(super) fn unsure(&mut self, events: Vec<Written>) {
        self.unsure.extend(events);
    }

    /// Takes the unsure events, to look them up.
    pub(super) fn take_unsure(&mut self) -> Vec<Written> {
        std::mem::take(&mut self.unsure)
    }

    pub(super) fn rolled_back(&mut self) {
        self.rolled_back += 1;
    }

    pub(super) fn order_placed(&mut self) {
        self.orders += 1;
    }

    /// Records an error that the demo survives.
    pub(super) fn fault(&mut self, fault: String) {
        self.fault = Some(fault);
    }

    /// The last error.
    pub(super) fn last_fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Records that the consumer received this event at this time.
    pub(super) fn received(&mut self, event: Arrived, at: Instant) {
        match self.waiting.remove(&event.event_id) {
            Some(committed) => self.latencies.push(at.saturating_duration_since(committed)),
            None => _ = self.early.insert(event.event_id, at),
        }
        self.arrived.push(event);
    }

    /// Whether every event whose commit was recorded has arrived.
    pub(super) fn is_drained(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn figures(&self) -> Figures {
        let recent = self.latencies.len().saturating_sub(RECENT);
        Figures {
            orders: self.orders,
            rolled_back: self.rolled_back,
            written: self.written.len(),
            received: self.arrived.len(),
            waiting: self.waiting.len(),
            latency: latency(&self.latencies[recent..]),
        }
    }

    /// The latency of all events.
    pub(super) fn latency(&self) -> Latency {
        latency(&self.latencies)
    }

    pub(super) fn verdict(&self) -> Verdict {
        compare(&self.written, &self.arrived)
    }
}

fn latency(latencies: &[Duration]) -> Latency {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default();
    Latency { p50: at(50), p99: at(99) }
}

/// Distinguishes payloads without keeping them.
pub(super) fn fingerprint(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event_id: Uuid) -> (Written, Arrived) {
        let written = Written { event_id, topic: "t", key: "k".to_owned(), sequence: 1, payload: 1 };
        let (topic, key) = ("t".to_owned(), "k".to_owned());
        (written, Arrived { event_id, topic, partition: 0, key, payload: 1 })
    }

    #[test]
    fn latency_runs_from_the_commit_to_the_arrival() {
        let mut ledger = Ledger::default();
        let (written, arrived) = event(Uuid::now_v7());
        let at = Instant::now();
        ledger.committed(vec![written], at);
        assert_eq!((ledger.is_drained(), ledger.figures().waiting), (false, 1));
        ledger.received(arrived, at + Duration::from_millis(4));
        assert!(ledger.is_drained());
        assert_eq!(ledger.latency().p50, Duration::from_millis(4));
    }

    #[test]
    fn event_that_arrives_before_its_commit_is_recorded_has_no_latency() {
        let mut ledger = Ledger::default();
        let (written, arrived) = event(Uuid::now_v7());
        let at = Instant::now();
        ledger.received(arrived, at);
        ledger.committed(vec![written], at + Duration::from_millis(4));
        assert!(ledger.is_drained());
        assert_eq!(ledger.latency().p99, Duration::ZERO);
        assert!(ledger.verdict().is_exact());
    }
}
