//! A drain: waiting rows are published as fast as possible.
//!
//! The measurement polls the end offsets of the topics' partitions, so it is the same for every program that publishes
//! the rows. Nothing is consumed during a drain, because a consumer would need as much of the machine as the relay.

use crate::error::BenchError;
use crate::place::{Place, Route};
use crate::processes::usage::{Meter, Reading, Usage};
use crate::subject::Subject;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often each broker gets one small request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longer than an outage from which the servers recover by themselves.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The measurements of a drain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drain {
    /// The number of published rows.
    pub rows: u64,
    /// The time from the last poll without any record to the first poll with all records.
    pub seconds: f64,
    /// Rows per second.
    pub rows_per_second: f64,
    /// The rate for the first third of the rows.
    pub first_third_rows_per_second: f64,
    /// The rate for the last third of the rows.
    pub last_third_rows_per_second: f64,
    /// The share of all cores of the machine that any process used, from 0 to 1.
    pub machine_busy: Option<f64>,
    /// What the parties used in that time, and until all rows were settled. The subject comes first.
    pub usage: Vec<Usage>,
}

/// Watches a started subject until it has published this number of rows, which are all that exist, to empty topics.
///
/// # Errors
///
/// If the subject ends, if nothing arrives for a minute, or if PostgreSQL or Kafka fails.
pub async fn watch(
    place: &Place,
    route: &Route,
    subject: &mut impl Subject,
    rows: u64,
) -> Result<Drain, BenchError> {
    let mut parties = vec![subject.party()];
    parties.extend(place.parties().visible());
    let meter = Meter::start(parties);
    let mut began = meter.read();
    let mut course = Course::new(rows);
    let watched_from = Instant::now();
    loop {
        let polled = Instant::now();
        let arrived = place.topics().ends(&route.topics, route.partitions).await?;
        course.record(Instant::now(), arrived);
        if arrived >= rows {
            break;
        }
        subject.check()?;
        if arrived == 0 {
            began = meter.read();
            course.begin(began.at);
        }
        let heard_at = if arrived == 0 { watched_from } else { course.changed_at() };
        if heard_at.elapsed() > SILENCE_MAX {
            return Err(BenchError::Subject(format!(
                "{arrived} of {rows} rows have arrived, and none for {SILENCE_MAX:?}"
            )));
        }
        tokio::time::sleep(POLL_INTERVAL.saturating_sub(polled.elapsed())).await;
    }
    let ended = settled(subject, rows, &meter).await?;
    Ok(Drain { machine_busy: meter.busy(&began, &ended), ..course.drain(meter.used(&began, &ended, rows)) })
}

/// Waits until the subject has settled all rows.
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

    fn changed_at(&self) -> Instant {
        self.polls[self.polls.len() - 1].0
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
        seconds(self.changed_at())
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
