//! Health: whether Kafka and Postgres are available, and what logs, metrics, `/readyz` and the watchdog report.

pub mod episodes;
pub(crate) mod gate;
pub mod metrics;
pub mod outage;
pub(crate) mod progress;
pub(crate) mod rejections;
pub mod stats;

use crate::event::Event;
use crate::failure::Fault;
use crate::outbox::RejectedRow;
use crate::reason;
use outage::{Outage, POSTGRES_ADVICE};
use rejections::Rejections;
use stats::Stats;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Short locks of other sessions are normal, for example of operators' statements or deadlocks.
pub(crate) const LOCKS_PATIENCE: Duration = Duration::from_secs(5);

/// What is available, and what was reported.
pub struct Health {
    stats: Arc<Stats>,
    pub postgres: Outage,
    pub(crate) kafka: Outage,
    /// Settlements that cannot record rows because of locks of other sessions.
    pub(crate) locks: Outage,
    /// Rejected rows that were reported.
    pub(crate) rejections: Rejections,
    /// The database's clock in microseconds since 1970, and when it was read.
    clock: Cell<Option<(i64, Instant)>>,
    /// When a worker last settled a batch.
    settled_at: Cell<Option<Instant>>,
    /// The end of the last batch with acknowledged rows.
    acknowledged_at: Cell<Option<Instant>>,
    /// The start of the last cycle in which Kafka did not answer a session.
    unanswered_since: Cell<Option<Instant>>,
}

impl Health {
    pub(crate) fn new(stats: Arc<Stats>) -> Health {
        Health {
            stats,
            postgres: Outage::new("postgres", "postgres_unavailable"),
            kafka: Outage::new("kafka", "kafka_unavailable"),
            locks: Outage::lasting("rows", "rows_locked", LOCKS_PATIENCE)
                .described("locked", "no longer locked"),
            rejections: Rejections::default(),
            clock: Cell::new(None),
            settled_at: Cell::new(None),
            acknowledged_at: Cell::new(None),
            unanswered_since: Cell::new(None),
        }
    }

    /// Records that Postgres failed for this party. `begun` is the start of the failed operation. The relay is not ready
    /// while it fails for any party.
    pub fn postgres_failed(&self, party: usize, begun: Instant, fault: &Fault) {
        if self.postgres.has_ended_since(begun) {
            tracing::debug!("late postgres failure from an outage that has ended: {fault}");
            return;
        }
        self.stats.postgres.fails(fault);
        self.postgres.failed(party, fault, POSTGRES_ADVICE);
    }

    /// Records that Postgres worked for this party. It counts as available once it works for all parties, because reads by
    /// the scout alone publish nothing.
    pub fn postgres_worked(&self, party: usize) {
        self.postgres.worked(party);
        if self.postgres.lasts().is_none() {
            self.stats.postgres.answers();
        }
    }

    /// Records that Kafka works for all parties.
    pub fn kafka_works(&self) {
        self.stats.kafka.answers();
        self.kafka.worked(0);
    }

    /// Records that a worker has settled a batch.
    pub(crate) fn settled(&self) {
        self.settled_at.set(Some(Instant::now()));
    }

    /// Whether a worker has settled a batch since then.
    pub(crate) fn has_settled_since(&self, begun: Instant) -> bool {
        self.settled_at.get().is_some_and(|at| at > begun)
    }

    /// Records that a batch with acknowledged rows has ended.
    pub(crate) fn kafka_acknowledged(&self) {
        self.acknowledged_at.set(Some(Instant::now()));
    }

    /// Whether a batch with acknowledged rows has ended since then.
    pub(crate) fn acknowledged_since(&self, begun: Instant) -> bool {
        self.acknowledged_at.get().is_some_and(|at| at > begun)
    }

    /// Records that Kafka did not answer a session in a cycle that began at this time.
    pub(crate) fn kafka_unanswered(&self, begun: Instant) {
        self.unanswered_since.set(Some(begun));
    }

    /// Whether the connections of a session may have died together with those of another one, because Kafka last answered
    /// it before it stopped answering the other one.
    pub(crate) fn may_be_silent(&self, answered_at: Instant) -> bool {
        self.unanswered_since.get().is_some_and(|since| answered_at < since)
    }

    /// Records the database's clock, in microseconds since 1970.
    pub fn note_clock(&self, clock_us: i64) {
        self.clock.set(Some((clock_us, Instant::now())));
    }

    /// Measures the latency of the oldest of these rows, which Kafka has just acknowledged. Ids are drawn in about the order
    /// of `created_at`.
    pub(crate) fn measure_latency<'a, E: Event + 'a>(&self, sent: impl Iterator<Item = &'a E>) {
        let oldest = sent.min_by_key(|row| row.id());
        let (Some(oldest), Some((clock_us, at))) = (oldest, self.clock.get()) else { return };
        let now_us = clock_us.saturating_add_unsigned(at.elapsed().as_micros() as u64);
        let late_us = now_us.saturating_sub(oldest.created_at_us()).max(0);
        self.stats.observe_latency(Duration::from_micros(late_us.unsigned_abs()));
    }

    /// Counts a rejected row. The first of a run is reported with the consequence for the row, and later ones with their number.
    pub(crate) fn rejected<E: Event>(
        &self,
        RejectedRow { row, topic, why }: &RejectedRow<'_, E>,
        consequence: &str,
    ) {
        self.stats.count_rejected(why.reason);
        let unreadable = why.reason == reason::UNREADABLE_ROW.word;
        let (code, what) = if unreadable {
            ("event_unreadable", "event unreadable")
        } else {
            ("event_rejected", "event rejected")
        };
        let fix = || reason::fix(reason::remedy(why.reason));
        match self.rejections.counts(topic, why.reason) {
            None => tracing::debug!(
                event_id = %row.event_id(), topic, reason = why.reason,
                "another {what} for the same reason, {consequence}: {}. {}",
                why.error, fix()
            ),
            Some(1) => tracing::warn!(
                code, event_id = %row.event_id(), topic, reason = why.reason,
                "{what}, {consequence}: {}. {}", why.error, fix()
            ),
            Some(events) => tracing::warn!(
                code = "rejections_continue",
                topic,
                reason = why.reason,
                events,
                "events rejected for the same reason. {}",
                fix()
            ),
        }
    }
}
