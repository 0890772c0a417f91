//! Health: whether Kafka and Postgres work, and what logs, metrics, `/readyz` and the watchdog report of it.

pub(crate) mod episodes;
pub(crate) mod gate;
pub(crate) mod outage;
pub(crate) mod progress;
pub(crate) mod rejections;
pub mod stats;

use crate::relay::event::Event;
use crate::relay::failure::Fault;
use crate::relay::outbox::Verdict;
use crate::relay::reason;
use outage::{Outage, POSTGRES_ADVICE};
use rejections::Rejections;
use stats::Stats;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Locks of others are ordinary as long as they are gone soon: operators' statements, deadlocks.
pub(crate) const LOCKS_PATIENCE: Duration = Duration::from_secs(5);

/// What works, and what is reported of it.
pub(crate) struct Health {
    stats: Arc<Stats>,
    /// Whether Postgres works.
    pub(crate) postgres: Outage,
    /// Whether Kafka works.
    pub(crate) kafka: Outage,
    /// Whether settlements get past the locks of other sessions.
    pub(crate) locks: Outage,
    /// Rows that were reported as rejected.
    pub(crate) rejections: Rejections,
    /// What the database's clock said, in microseconds since 1970, and when it said so.
    clock: Cell<Option<(i64, Instant)>>,
    /// When a batch ended of which Kafka had acknowledged rows.
    acknowledged_at: Cell<Option<Instant>>,
}

impl Health {
    /// Everything works.
    pub(crate) fn new(stats: Arc<Stats>) -> Health {
        Health {
            stats,
            postgres: Outage::new("postgres"),
            kafka: Outage::new("kafka"),
            locks: Outage::lasting("locked rows", LOCKS_PATIENCE),
            rejections: Rejections::default(),
            clock: Cell::new(None),
            acknowledged_at: Cell::new(None),
        }
    }

    /// Postgres failed this party. The relay is not ready while it fails any party.
    pub(crate) fn postgres_failed(&self, party: usize, fault: &Fault) {
        self.stats.postgres.fails(fault);
        self.postgres.failed(party, fault, POSTGRES_ADVICE);
    }

    /// Postgres worked for this party. It counts as answering once it works for all parties: a server that only lets the scout
    /// read relays nothing.
    pub(crate) fn postgres_worked(&self, party: usize) {
        self.postgres.worked(party);
        if self.postgres.lasts().is_none() {
            self.stats.postgres.answers();
        }
    }

    /// Kafka works for all parties.
    pub(crate) fn kafka_works(&self) {
        self.stats.kafka.answers();
        self.kafka.worked(0);
    }

    /// A batch has ended of which Kafka had acknowledged rows.
    pub(crate) fn kafka_acknowledged(&self) {
        self.acknowledged_at.set(Some(Instant::now()));
    }

    /// Whether such a batch has ended since then.
    pub(crate) fn acknowledged_since(&self, begun: Instant) -> bool {
        self.acknowledged_at.get().is_some_and(|at| at > begun)
    }

    /// The database's clock says this now, in microseconds since 1970.
    pub(crate) fn saw_clock(&self, clock_us: i64) {
        self.clock.set(Some((clock_us, Instant::now())));
    }

    /// Rows were settled as sent: measures how late the oldest was. Ids are drawn in about the order of `created_at`.
    pub(crate) fn measure_latency<E: Event>(&self, sent: &[&E]) {
        let oldest = sent.iter().min_by_key(|row| row.id());
        let (Some(oldest), Some((clock_us, at))) = (oldest, self.clock.get()) else { return };
        let now_us = clock_us.saturating_add_unsigned(at.elapsed().as_micros() as u64);
        let late_us = now_us.saturating_sub(oldest.created_at_us()).max(0);
        self.stats.latency_seconds.observe(late_us as f64 / 1e6);
    }

    /// A row was rejected. Only the first of a run is reported, with the consequence for the row.
    pub(crate) fn rejected<E: Event>(&self, Verdict { row, topic, why }: &Verdict<'_, E>, consequence: &str) {
        self.stats.count_rejected(why.reason);
        let unreadable = why.reason == reason::UNREADABLE_ROW.word;
        let what = if unreadable { "event unreadable" } else { "event rejected" };
        if !self.rejections.begins(topic, why.reason) {
            tracing::debug!(
                event_id = %row.event_id(), topic, reason = why.reason,
                "{what} again, {consequence}: {}", why.error
            );
            return;
        }
        tracing::warn!(
            event_id = %row.event_id(), topic, reason = why.reason,
            "{what}, {consequence}: {}. Fix: {}",
            why.error, reason::remedy(why.reason)
        );
    }
}
