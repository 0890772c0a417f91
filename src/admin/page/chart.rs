//! The charts of the last 15 minutes, from samples of counters that exist anyway. Their number is bounded. A chart is an SVG
//! path, drawn without scripts or styles of its own.

use relay::health::stats::Stats;
use settings::text::{rate, thousands};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub(super) const COVERED: Duration = Duration::from_secs(15 * 60);
pub(super) const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// One more than the number of intervals.
const SAMPLES_MAX: usize = (COVERED.as_secs() / SAMPLE_EVERY.as_secs()) as usize + 1;
/// Backlog and age are measured every 5 s. Older values are not shown.
const MEASURED_WITHIN: Duration = Duration::from_secs(30);
/// The size of the drawing, which is stretched to the width of the page.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 100.0;
/// The line at the top of the scale stays visible.
const TOP: f64 = 4.0;

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    ready: bool,
    sent: u64,
    latencies: u64,
    latency_us: u64,
    /// `None` if it was not measured recently, like the backlog.
    oldest_seconds: Option<f64>,
    backlog: Option<f64>,
}

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
    pub(super) fn sample(&self, stats: &Stats) {
        let is_measured = stats.since_measured().is_some_and(|age| age < MEASURED_WITHIN);
        let sample = Sample {
            at: Instant::now(),
            ready: stats.kafka_up.get() == 1 && stats.postgres_up.get() == 1,
            sent: stats.published.get(),
            latencies: stats.latency_count.load(Ordering::Relaxed),
            latency_us: stats.latency_micros.load(Ordering::Relaxed),
            oldest_seconds: is_measured.then(|| stats.oldest_seconds.get()),
            backlog: is_measured.then(|| stats.backlog.get() as f64),
        };
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
        oldest_seconds: end.oldest_seconds,
        backlog: end.backlog,
    }
}

pub(super) struct Chart {
    pub(super) quantity: &'static Quantity,
    /// The latest value.
    pub(super) now: String,
    /// The value at the top of the scale.
    pub(super) top: String,
    /// The whole chart in words.
    pub(super) summary: String,
    pub(super) line: String,
    pub(super) area: String,
}

pub(super) struct Quantity {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    value: fn(&Interval) -> Option<f64>,
    show: fn(f64) -> String,
    /// A scale below this would magnify noise.
    scale_min: f64,
}

static QUANTITIES: [Quantity; 4] = [
    Quantity {
        title: "Events sent",
        about: "per second, by this relay",
        value: |interval| Some(interval.sent_per_second),
        show: |value| format!("{}/s", rate(value)),
        scale_min: 10.0,
    },
    Quantity {
        title: "Latency",
        about: "insert to acknowledgement, oldest event of each batch",
        value: |interval| interval.latency_seconds,
        show: duration,
        scale_min: 0.01,
    },
    Quantity {
        title: "Lag",
        about: "age of the oldest unsent event",
        value: |interval| interval.oldest_seconds,
        show: duration,
        scale_min: 1.0,
    },
    Quantity {
        title: "Backlog",
        about: "unsent events",
        value: |interval| interval.backlog,
        show: |value| thousands(value.max(0.0).round() as usize),
        scale_min: 10.0,
    },
];

pub(super) fn charts(intervals: &[Interval]) -> Vec<Chart> {
    QUANTITIES.iter().map(|quantity| chart(quantity, intervals)).collect()
}

fn chart(quantity: &'static Quantity, intervals: &[Interval]) -> Chart {
    let values: Vec<(&Interval, Option<f64>)> = intervals
        .iter()
        .map(|interval| (interval, (quantity.value)(interval).filter(|value| value.is_finite())))
        .collect();
    let most = values.iter().filter_map(|(_, value)| *value).fold(0.0, f64::max);
    let top = scale(most.max(quantity.scale_min));
    let show = quantity.show;
    let latest = values.last().and_then(|(_, value)| *value);
    let summary = match latest {
        _ if intervals.is_empty() => "no values yet".to_owned(),
        Some(latest) => format!("now {}, maximum {} in the last 15 minutes", show(latest), show(most)),
        None => format!("no current value, maximum {} in the last 15 minutes", show(most)),
    };
    let (line, area) = paths(&values, top);
    let now = latest.map_or_else(|| "–".to_owned(), show);
    Chart { quantity, now, top: show(top), summary, line, area }
}

/// The line, and the area below it. Both are interrupted where the value is unknown.
fn paths(values: &[(&Interval, Option<f64>)], top: f64) -> (String, String) {
    let (mut line, mut area) = (String::new(), String::new());
    for run in values.chunk_by(|(_, before), (_, after)| before.is_some() == after.is_some()) {
        let points: Vec<(f64, f64)> =
            run.iter().filter_map(|(interval, value)| Some((x(interval.until), y((*value)?, top)))).collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
        _ = write!(area, "M{:.1} {HEIGHT}", first.0);
        for (index, (x, y)) in points.iter().enumerate() {
            _ = write!(line, "{}{x:.1} {y:.1}", if index == 0 { "M" } else { "L" });
            _ = write!(area, "L{x:.1} {y:.1}");
        }
        if points.len() == 1 {
            // Round line caps show a line of zero length as a dot.
            _ = write!(line, "L{:.1} {:.1}", first.0, first.1);
        }
        _ = write!(area, "L{:.1} {HEIGHT}Z", last.0);
    }
    (line, area)
}

/// The start and the width of each period in which the relay was not ready.
pub(super) fn not_ready(intervals: &[Interval]) -> Vec<(String, String)> {
    let runs = intervals.chunk_by(|before, after| before.ready == after.ready);
    let away = runs.filter(|run| !run[0].ready);
    away.map(|run| {
        let (from, until) = (x(run[0].from), x(run[run.len() - 1].until));
        (format!("{from:.1}"), format!("{:.1}", until - from))
    })
    .collect()
}

fn x(ago: Duration) -> f64 {
    (1.0 - ago.as_secs_f64() / COVERED.as_secs_f64()).clamp(0.0, 1.0) * WIDTH
}

fn y(value: f64, top: f64) -> f64 {
    HEIGHT - (value / top).clamp(0.0, 1.0) * (HEIGHT - TOP)
}

/// The next 1, 2 or 5 times a power of ten.
fn scale(most: f64) -> f64 {
    let power = 10_f64.powf(most.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|step| step * power).find(|top| *top >= most).unwrap_or(10.0 * power)
}

/// Two significant digits are enough for a chart.
pub(super) fn duration(seconds: f64) -> String {
    match seconds.max(0.0) {
        0.0 => "0 s".to_owned(),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
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

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ago: u32, ready: bool, backlog: Option<f64>) -> Interval {
        Interval {
            from: SECOND * (ago + 5),
            until: SECOND * ago,
            ready,
            sent_per_second: 12.0,
            latency_seconds: None,
            oldest_seconds: Some(f64::INFINITY),
            backlog,
        }
    }

    #[test]
    fn lines_are_interrupted_where_the_value_is_unknown() {
        let intervals = [
            at(900, true, Some(0.0)),
            at(450, true, Some(50.0)),
            at(300, false, None),
            at(0, true, Some(100.0)),
        ];
        let [sent, latency, lag, backlog] = &charts(&intervals)[..] else { panic!() };
        assert_eq!(backlog.line, "M0.0 100.0L300.0 52.0M600.0 4.0L600.0 4.0");
        assert_eq!(backlog.area, "M0.0 100L0.0 100.0L300.0 52.0L300.0 100ZM600.0 100L600.0 4.0L600.0 100Z");
        assert_eq!((backlog.now.as_str(), backlog.top.as_str()), ("100", "100"));
        assert_eq!(not_ready(&intervals), [("396.7".to_owned(), "3.3".to_owned())]);
        assert_eq!((sent.now.as_str(), sent.top.as_str()), ("12/s", "20/s"));
        assert_eq!((latency.now.as_str(), latency.line.as_str()), ("–", ""));
        assert_eq!((lag.now.as_str(), lag.line.as_str()), ("–", ""), "an infinite age is unknown");
        assert_eq!(backlog.summary, "now 100, maximum 100 in the last 15 minutes");
    }

    #[test]
    fn scales_are_round_numbers_and_an_empty_chart_has_one_too() {
        for (most, top) in [(10.0, 10.0), (10.1, 20.0), (45.0, 50.0), (51.0, 100.0), (0.01, 0.01), (0.3, 0.5)]
        {
            assert!((scale(most) / top - 1.0).abs() < 1e-9, "{most}: {}", scale(most));
        }
        let empty = charts(&[]);
        assert_eq!((empty[0].top.as_str(), empty[0].summary.as_str()), ("10/s", "no values yet"));
    }

    #[test]
    fn durations_are_short() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.0042, "4.2 ms"),
            (0.042, "42 ms"),
            (4.2, "4.2 s"),
            (42.0, "42 s"),
            (4_200.0, "70 min"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
