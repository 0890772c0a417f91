//! How much is measured. A quick run reduces everything in proportion, to show that all of it works.

use std::time::Duration;

/// The rows of a full drain.
const DRAIN_ROWS: u64 = 2_000_000;
/// The share of the rows and of the time in a quick run.
const QUICK_ROWS: f64 = 0.05;
const QUICK_TIME: f64 = 1.0 / 6.0;

pub struct Size {
    pub runs: u32,
    rows: f64,
    time: f64,
}

impl Size {
    pub fn new(runs: u32, drain_rows: Option<u64>, quick: bool) -> Self {
        let rows = match drain_rows {
            Some(rows) => rows as f64 / DRAIN_ROWS as f64,
            None if quick => QUICK_ROWS,
            None => 1.0,
        };
        Self { runs: if quick { 1 } else { runs }, rows, time: if rows < 0.5 { QUICK_TIME } else { 1.0 } }
    }

    /// Whether the figures come from less than a full measurement.
    pub fn is_reduced(&self) -> bool {
        self.rows < 1.0 || self.runs < 3
    }

    /// Whether less is measured than in a full run, however often.
    pub fn is_scaled(&self) -> bool {
        self.rows < 1.0
    }

    /// Scales a number of rows of a full run.
    pub fn rows(&self, full: u64) -> u64 {
        ((full as f64 * self.rows) as u64).max(1)
    }

    /// Scales a duration of a full run.
    pub fn time(&self, full: Duration) -> Duration {
        full.mul_f64(self.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_has_a_twentieth_of_the_rows_and_counts_as_reduced() {
        let quick = Size::new(3, None, true);
        assert_eq!((quick.runs, quick.rows(2_000_000)), (1, 100_000));
        assert_eq!(quick.time(Duration::from_secs(60)), Duration::from_secs(10));
        assert!(quick.is_reduced());
    }

    #[test]
    fn everything_changes_in_proportion_to_the_rows_of_a_drain() {
        let full = Size::new(3, None, false);
        assert_eq!(full.rows(10_000_000), 10_000_000);
        assert!(!full.is_reduced());
        let half = Size::new(3, Some(1_000_000), false);
        assert_eq!((half.rows(10_000_000), half.rows(1)), (5_000_000, 1));
        assert!(half.is_reduced());
    }
}
