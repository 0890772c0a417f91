//! Samples of counters that exist anyway, for the charts of the last 15 minutes. Their number is bounded.

use relay::health::stats::Stats;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What the charts cover.
pub(super) const COVERED: Duration = Duration::from_secs(15 * 60);
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// One more than the number of intervals.
const SAMPLES_MAX: usize = (COVERED.as_secs() / SAMPLE_EVERY.as_secs()) as usize + 1;
/// Backlog and age are measured every 5 s. Older values are not shown.
const MEASURED_WITHIN: Duration = Duration::from_secs(30);

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    at: Instant,
    ready: bool,
    sent: u64,
    latencies: u64,
    latency_us: u64,
    /// `None` if they were not measured recently.
    measured: Option<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    backlog: i64,
    oldest_seconds: f64,
}

/// The latest samples.
#[derive(Default)]
pub(super) struct History(Mutex<VecDeque<Sample>>);

/// The values at the end of an interval between two samples. `None` is unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    /// The time from the beginning and the end of the interval until now.
    pub(super) from: Duration,
    pub(super) until: Duration,
    /// Whether Kafka and Postgres were available at the end.
    pub(super) ready: bool,
    pub(super) sent_per_second: f64,
    /// The mean over the batches that ended in the interval. `None` if there were none.
    pub(super) latency_seconds: Option<f64>,
    pub(super) oldest_seconds: Option<f64>,
    pub(super) backlog: Option<f64>,
}

impl History {
    /// Adds a sample.
    pub(super) fn sample(&self, stats: &Stats) {
        let measured = (stats.since_measured() < MEASURED_WITHIN && stats.has_measured())
            .then(|| Measured { backlog: stats.backlog.get(), oldest_seconds: stats.oldest_seconds.get() });
        self.add(Sample {
            at: Instant::now(),
            ready: stats.kafka.up.get() == 1 && stats.postgres.up.get() == 1,
            sent: stats.published.get(),
            latencies: stats.latencies.count.get(),
            latency_us: stats.latencies.micros.get(),
            measured,
        });
    }

    fn add(&self, sample: Sample) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The intervals that end in the last 15 minutes, the oldest first.
    pub(super) fn intervals(&self) -> Vec<Interval> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let pairs = samples.iter().zip(samples.iter().skip(1));
        let recent = pairs.filter(|(_, end)| now.saturating_duration_since(end.at) <= COVERED);
        recent.map(|(begin, end)| interval(begin, end, now)).collect()
    }
}

fn interval(begin: &Sample, end: &Sample, now: Instant) -> Interval {
    let seconds = end.at.saturating_duration_since(begin.at).as_secs_f64().max(0.001);
    let batches = end.latencies.saturating_sub(begin.latencies);
    let latency_us = end.latency_us.saturating_sub(begin.latency_us);
    Interval {
        from: now.saturating_duration_since(begin.at),
        until: now.saturating_duration_since(end.at),
        ready: end.ready,
        sent_per_second: end.sent.saturating_sub(begin.sent) as f64 / seconds,
        latency_seconds: (batches > 0).then(|| latency_us as f64 / batches as f64 / 1e6),
        oldest_seconds: end.measured.map(|measured| measured.oldest_seconds),
        backlog: end.measured.map(|measured| measured.backlog as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn intervals_have_rates_and_unknown_values() {
        let (stats, history) = (Stats::new(), History::default());
        history.sample(&stats);
        assert_eq!(history.intervals(), []);
        stats.published.inc_by(50);
        stats.observe_latency(Duration::from_millis(10));
        stats.observe_latency(Duration::from_millis(30));
        advance(SAMPLE_EVERY).await;
        history.sample(&stats);
        stats.kafka.answers();
        stats.postgres.answers();
        stats.backlog.set(7);
        stats.oldest_seconds.set(1.5);
        stats.measured();
        advance(SAMPLE_EVERY).await;
        history.sample(&stats);
        let [first, second] = history.intervals()[..] else { panic!("{:?}", history.intervals()) };
        assert_eq!((first.from, first.until), (SAMPLE_EVERY * 2, SAMPLE_EVERY));
        assert_eq!((first.sent_per_second, first.latency_seconds), (10.0, Some(0.02)));
        assert_eq!((first.ready, first.backlog), (false, None), "nothing was measured yet");
        assert_eq!((second.ready, second.sent_per_second, second.latency_seconds), (true, 0.0, None));
        assert_eq!((second.backlog, second.oldest_seconds), (Some(7.0), Some(1.5)));
        // A stalled measurement is unknown, not current.
        advance(MEASURED_WITHIN).await;
        history.sample(&stats);
        assert_eq!(history.intervals()[2].backlog, None);
    }

    #[tokio::test(start_paused = true)]
    async fn history_is_bounded_and_covers_15_minutes() {
        let (stats, history) = (Stats::new(), History::default());
        for _ in 0..1_000 {
            history.sample(&stats);
            advance(SAMPLE_EVERY).await;
        }
        assert_eq!(history.0.lock().unwrap().len(), SAMPLES_MAX);
        let intervals = history.intervals();
        assert_eq!(intervals.len(), 180);
        assert_eq!(intervals[0].from, COVERED + SAMPLE_EVERY);
        // After a freeze, old samples are no longer shown.
        advance(COVERED * 2).await;
        assert_eq!(history.intervals(), []);
    }
}
