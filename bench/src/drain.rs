//! A drain: rows that wait are moved as fast as it goes.
//!
//! It is watched from outside, by the ends of the topics' partitions, so that it says the same of whatever moves the rows.
//! Nothing is consumed meanwhile, which would cost the machine as much as the relay does.

use super::error::BenchError;
use super::place::{Place, Route};
use super::subject::Subject;
use super::usage::{Meter, Reading, Usage};
use serde::Serialize;
use std::time::{Duration, Instant};

/// One small request to each broker that often.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longer than an outage that is mended by itself.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What a drain was like.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drain {
    /// Rows that were moved.
    pub rows: u64,
    /// From the last look that saw no record to the first one that saw all of them.
    pub seconds: f64,
    /// Rows by seconds.
    pub rows_per_second: f64,
    /// The same of the first third of the rows.
    pub first_third_rows_per_second: f64,
    /// The same of the last third.
    pub last_third_rows_per_second: f64,
    /// The share of all cores of the machine that was in use, by whomever; from 0 to 1.
    pub machine_busy: Option<f64>,
    /// What the parties used in that time and until the bookkeeping was done: the subject first.
    pub usage: Vec<Usage>,
}

/// Watches a subject that has been started until it has moved so many rows, all that there are, to empty topics.
///
/// # Errors
///
/// The subject ends, or nothing arrives for a minute, or Postgres or Kafka fails.
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
        let looked = Instant::now();
        let arrived = place.topics().ends(&route.topics, route.partitions).await?;
        course.saw(Instant::now(), arrived);
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
        tokio::time::sleep(LOOK_EVERY.saturating_sub(looked.elapsed())).await;
    }
    let ended = settled(subject, rows, &meter).await?;
    Ok(Drain { machine_busy: meter.busy(&began, &ended), ..course.drain(meter.used(&began, &ended, rows)) })
}

/// Waits until the subject has done its bookkeeping.
async fn settled(subject: &mut impl Subject, rows: u64, meter: &Meter) -> Result<Reading, BenchError> {
    let begun = Instant::now();
    while !subject.has_settled(rows).await? {
        subject.check()?;
        if begun.elapsed() > SILENCE_MAX {
            let text = format!("all rows have arrived, but are not settled after {SILENCE_MAX:?}");
            return Err(BenchError::Subject(text));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(meter.read())
}

/// Rows a second; 0 if there was no time.
pub(super) fn rate(rows: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { rows / seconds } else { 0.0 }
}

/// When how many rows had arrived.
struct Course {
    rows: u64,
    /// Only looks that saw more than the one before; the first one is the last that saw nothing.
    looks: Vec<(Instant, u64)>,
}

impl Course {
    fn new(rows: u64) -> Course {
        Course { rows, looks: vec![(Instant::now(), 0)] }
    }

    /// Nothing had arrived by then.
    fn begin(&mut self, at: Instant) {
        self.looks[0].0 = self.looks[0].0.max(at);
    }

    fn saw(&mut self, at: Instant, arrived: u64) {
        if arrived > self.looks[self.looks.len() - 1].1 {
            self.looks.push((at, arrived));
        }
    }

    fn changed_at(&self) -> Instant {
        self.looks[self.looks.len() - 1].0
    }

    /// When so many had arrived, between two looks in proportion.
    fn when(&self, rows: f64) -> f64 {
        let begun = self.looks[0].0;
        let seconds = |at: Instant| at.saturating_duration_since(begun).as_secs_f64();
        for pair in self.looks.windows(2) {
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
    fn rates_are_those_between_the_looks() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut course = Course { rows: 300, looks: vec![(at(0), 0)] };
        course.begin(at(1_000));
        for (ms, arrived) in [(2_000, 100), (2_500, 100), (4_000, 200), (8_000, 300)] {
            course.saw(at(ms), arrived);
        }
        let drain = course.drain(Vec::new());
        let rounded = |rate: f64| rate.round() as u64;
        assert_eq!(drain.seconds.round() as u64, 7);
        assert_eq!(rounded(drain.first_third_rows_per_second), 100);
        assert_eq!(rounded(drain.last_third_rows_per_second), 25);
        assert_eq!(rounded(drain.rows_per_second), 43);
    }
}
