//! A drain: waiting rows are published as fast as possible.
//!
//! The measurement polls the end offsets of the topics' partitions, so it is the same for every program that publishes
//! the rows. Nothing is consumed during a drain, because a consumer would need as much of the machine as the relay.

use crate::BenchError;
use crate::checker::Verdict;
use crate::place::Route;
use crate::relay::{Batches, Relay, Subject};
use crate::settings::Settings;
use crate::usage::{Meter, Reading, Usage};
use crate::verify::{self, Committed};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often each broker gets one small request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longer than an outage from which the servers recover by themselves.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Drain {
    pub rows: u64,
    /// The time from the last poll without any record to the first poll with all records.
    pub seconds: f64,
    pub rows_per_second: f64,
    pub first_third_rows_per_second: f64,
    pub last_third_rows_per_second: f64,
    /// The share of all cores of the machine that any process used, from 0 to 1.
    pub machine_busy: Option<f64>,
    /// What the parties used in that time, and until all rows were settled. The subject comes first.
    pub usage: Vec<Usage>,
}

/// Watches a started subject until it has published all rows, which are the only ones that are unsent, to empty topics.
pub async fn watch(route: &Route<'_>, subject: &mut impl Subject) -> Result<Drain, BenchError> {
    let rows = route.shape.rows;
    let meter = Meter::start(route.place.watched(subject));
    let mut began = meter.read();
    let mut course = Course::new(rows);
    let mut progress = Progress::default();
    loop {
        let polled = Instant::now();
        let arrived = route.arrived().await?;
        course.record(Instant::now(), arrived);
        if arrived >= rows {
            break;
        }
        subject.check()?;
        if arrived == 0 {
            began = meter.read();
            course.begin(began.at);
        }
        progress.check(arrived, rows)?;
        tokio::time::sleep(POLL_INTERVAL.saturating_sub(polled.elapsed())).await;
    }
    let ended = settled(subject, rows, &meter).await?;
    Ok(Drain { machine_busy: meter.busy(&began, &ended), ..course.drain(meter.used(&began, &ended, rows)) })
}

impl Drain {
    /// The rate at which all cores would do nothing but the work of the subject, PostgreSQL and Kafka for each row. None
    /// if the processes of one of them are not visible.
    pub fn cpu_limit(&self, cores: f64) -> Option<f64> {
        let costs: Option<Vec<f64>> = self.usage.iter().map(|usage| usage.cpu_us_per_row).collect();
        let us: f64 = costs.filter(|costs| costs.len() == 3)?.iter().sum();
        (us > 0.0).then(|| cores * 1e6 / us)
    }
}

/// Notices when no more rows arrive.
pub struct Progress {
    arrived: u64,
    at: Instant,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress { arrived: 0, at: Instant::now() }
    }
}

impl Progress {
    /// Fails if nothing has arrived for a minute.
    pub fn check(&mut self, arrived: u64, rows: u64) -> Result<(), BenchError> {
        if arrived > self.arrived {
            *self = Progress { arrived, at: Instant::now() };
        } else if self.at.elapsed() > SILENCE_MAX {
            let text = format!("{arrived} of {rows} rows have arrived, and none for {SILENCE_MAX:?}");
            return Err(BenchError::Subject(text));
        }
        Ok(())
    }
}

/// Waits until this number of rows has arrived.
pub async fn wait_for_all(
    route: &Route<'_>,
    subject: &mut impl Subject,
    rows: u64,
) -> Result<(), BenchError> {
    let mut progress = Progress::default();
    loop {
        let arrived = route.arrived().await?;
        if arrived >= rows {
            return Ok(());
        }
        subject.check()?;
        progress.check(arrived, rows)?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Lets a relay with these settings drain the outbox. Returns also its batches, and the result of the comparison.
pub async fn by_relay(
    route: &Route<'_>,
    change: impl FnOnce(Settings) -> Settings,
) -> Result<(Drain, Batches, Verdict), BenchError> {
    let mut relay = Relay::start_with(route, change).await?;
    let drain = watch(route, &mut relay).await?;
    let batches = relay.metrics().await?.batches();
    relay.stop().await?;
    let verdict = verify::read(route, &Committed(vec![drain.rows]), Relay::EVENT_ID).await?;
    Ok((drain, batches, verdict))
}

async fn settled(subject: &mut impl Subject, rows: u64, meter: &Meter) -> Result<Reading, BenchError> {
    let begun = Instant::now();
    while !subject.has_settled(rows).await? {
        subject.check()?;
        if begun.elapsed() > SILENCE_MAX {
            let text = format!("all rows have arrived, but are not settled after {SILENCE_MAX:?}");
            return Err(BenchError::Subject(text));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(meter.read())
}

/// Rows per second. 0 if no time has passed.
pub(crate) fn rate(rows: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { rows / seconds } else { 0.0 }
}

/// The number of rows that had arrived over time.
struct Course {
    rows: u64,
    /// Only polls with more rows than the previous one. The first entry is the last poll without any rows.
    polls: Vec<(Instant, u64)>,
}

impl Course {
    fn new(rows: u64) -> Course {
        Course { rows, polls: vec![(Instant::now(), 0)] }
    }

    /// Records that nothing had arrived by then.
    fn begin(&mut self, at: Instant) {
        self.polls[0].0 = self.polls[0].0.max(at);
    }

    fn record(&mut self, at: Instant, arrived: u64) {
        if arrived > self.polls[self.polls.len() - 1].1 {
            self.polls.push((at, arrived));
        }
    }

    /// The time when this number of rows had arrived, interpolated between two polls.
    fn when(&self, rows: f64) -> f64 {
        let begun = self.polls[0].0;
        let seconds = |at: Instant| at.saturating_duration_since(begun).as_secs_f64();
        for pair in self.polls.windows(2) {
            let ((before, few), (after, many)) = (pair[0], pair[1]);
            if many as f64 >= rows {
                let share = (rows - few as f64) / (many - few) as f64;
                return seconds(before) + share * (seconds(after) - seconds(before));
            }
        }
        seconds(self.polls[self.polls.len() - 1].0)
    }

    fn drain(&self, usage: Vec<Usage>) -> Drain {
        let third = self.rows as f64 / 3.0;
        let seconds = self.when(self.rows as f64);
        Drain {
            rows: self.rows,
            seconds,
            rows_per_second: rate(self.rows as f64, seconds),
            first_third_rows_per_second: rate(third, self.when(third)),
            last_third_rows_per_second: rate(third, seconds - self.when(2.0 * third)),
            machine_busy: None,
            usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_the_polls() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut course = Course { rows: 300, polls: vec![(at(0), 0)] };
        course.begin(at(1_000));
        for (ms, arrived) in [(2_000, 100), (2_500, 100), (4_000, 200), (8_000, 300)] {
            course.record(at(ms), arrived);
        }
        let drain = course.drain(Vec::new());
        let rounded = |rate: f64| rate.round() as u64;
        assert_eq!(drain.seconds.round() as u64, 7);
        assert_eq!(rounded(drain.first_third_rows_per_second), 100);
        assert_eq!(rounded(drain.last_third_rows_per_second), 25);
        assert_eq!(rounded(drain.rows_per_second), 43);
    }
}
