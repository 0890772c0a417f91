//! The measurements of the scout, and when to repeat what may take long.

use super::{Oldest, SCOUT, Scout, ScoutQueries};
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::lane::Lane;
use crate::relay::publisher::Publisher;
use std::time::Duration;
use tokio::time::Instant;

const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// A sweep walks every index entry that vacuum has not removed, so it gets about 2% of the time.
const SWEEP_SHARE: u32 = 50;
/// The longest wait for the next sweep. A sweep may have seemed slow because the relay was frozen.
const SWEEP_AFTER_AT_MOST: Duration = Duration::from_secs(300);

const MEASURING_ADVICE: &str = "Events are still published, but backlog metrics are outdated and rows that were \
     reset to unsent may wait. If this is a timeout, check with `outbox-relay status` whether vacuum keeps up";

impl<P: Publisher, L: ScoutQueries> Scout<P, L> {
    /// Measures for metrics and health, even while Kafka is unavailable. A failed measurement, for example because of the
    /// statement timeout, does not stop publishing. Returns whether it asked Postgres.
    pub(super) async fn measure(&mut self) -> Result<bool, Fault> {
        let begun = Instant::now();
        let asks = begun >= self.backlog_at || begun >= self.oldest_at;
        let lanes: Vec<Lane> = Lane::all().collect();
        if begun >= self.backlog_at {
            self.backlog_at = begun + MEASURE_EVERY;
            let lows = self.relay.marks.borrow().snapshot(&lanes).lows;
            let backlog = self.queries.backlog(&lows).await;
            self.backlog_at = after(&backlog, begun, MEASURE_EVERY);
            if let Some(rows) = self.measured(Measured::Backlog, backlog)? {
                self.relay.stats.backlog.set(rows);
            }
        }
        let begun = Instant::now();
        if begun >= self.oldest_at {
            self.oldest_at = begun + MEASURE_EVERY;
            let marks = self.relay.marks.borrow().snapshot(&lanes);
            let oldest = self.queries.oldest(&marks.lows, marks.basis).await;
            // If something is held, this walks index entries that vacuum has not removed, like a sweep.
            self.oldest_at = after(&oldest, begun, MEASURE_EVERY);
            if let Some(Oldest { age, clock_us }) = self.measured(Measured::Oldest, oldest)? {
                self.relay.stats.oldest_seconds.set(age.map_or(0.0, |age| age.as_secs_f64()));
                self.relay.health.note_clock(clock_us);
                if self.measuring.lasts().is_none() {
                    self.relay.stats.measured();
                }
            }
        }
        Ok(asks)
    }

    pub(super) fn measured<T>(&self, what: Measured, answer: Result<T, Fault>) -> Result<Option<T>, Fault> {
        self.relay.stats.beat();
        match answer {
            Err(fault) if fault.kind == FaultKind::Unavailable => Err(fault),
            Err(fault) => {
                self.measuring.failed(what as usize, &fault, MEASURING_ADVICE);
                Ok(None)
            }
            Ok(value) => {
                self.measuring.worked(what as usize);
                self.relay.health.postgres_worked(SCOUT);
                Ok(Some(value))
            }
        }
    }
}

/// When to repeat a measurement that began then: after `every` or later, so that it takes only its share of the time. The time
/// of a failed connection does not count.
pub(super) fn after<T>(measured: &Result<T, Fault>, begun: Instant, every: Duration) -> Instant {
    if matches!(measured, Err(fault) if fault.kind == FaultKind::Unavailable) {
        return Instant::now() + every;
    }
    Instant::now() + (begun.elapsed() * SWEEP_SHARE).clamp(every, SWEEP_AFTER_AT_MOST)
}

#[derive(Clone, Copy)]
pub(super) enum Measured {
    Backlog,
    Oldest,
    Sweep,
}
