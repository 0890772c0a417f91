//! The distribution of times.

use serde::Serialize;
use std::time::Duration;

/// Percentiles in milliseconds. For example, 99% of the times do not exceed `p99_ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The number of times.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// One in ten is longer.
    pub p90_ms: f64,
    /// One percent of the times is longer.
    pub p99_ms: f64,
    /// One in a thousand is longer.
    pub p999_ms: f64,
    /// The longest time.
    pub max_ms: f64,
}

impl Latency {
    /// The exact percentiles of these times. No buckets are used.
    pub fn of(mut times: Vec<Duration>) -> Latency {
        times.sort_unstable();
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        // The smallest time that at least this share of the times does not exceed.
        let at = |share: f64| {
            let rank = (times.len() as f64 * share).ceil() as usize;
            times.get(rank.saturating_sub(1)).map_or(0.0, ms)
        };
        Latency {
            count: times.len() as u64,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: times.last().map_or(0.0, ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_one_of_the_measured_times() {
        let times = |most: u64| (1..=most).rev().map(Duration::from_millis).collect();
        let latency = Latency::of(times(1_000));
        assert_eq!((latency.p50_ms, latency.p99_ms, latency.p999_ms), (500.0, 990.0, 999.0));
        assert_eq!((latency.max_ms, latency.count), (1_000.0, 1_000));
        let few = Latency::of(times(2));
        assert_eq!((few.p50_ms, few.p99_ms), (1.0, 2.0));
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }
}
