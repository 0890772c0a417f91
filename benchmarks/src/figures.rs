//! Figures: what a part measured in each run, with a unit.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The unit of a figure. It determines the format and whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    RowsPerSecond,
    MebibytesPerSecond,
    MicrosecondsPerRow,
    Milliseconds,
    Seconds,
    Mebibytes,
    /// Percent of the quantity in the figure's name. More is better.
    Percent,
    /// Percent of one core.
    CorePercent,
    /// Percent of a whole. Less is better.
    SharePercent,
    /// A factor.
    Times,
    /// A number, such as of rows or runs. Fewer are better.
    Rows,
    BytesPerRow,
    TransactionsPerSecond,
}

impl Unit {
    /// The better one of two values of this unit.
    fn better(self, one: f64, other: f64) -> f64 {
        match self {
            Self::RowsPerSecond | Self::MebibytesPerSecond | Self::Percent | Self::Times => one.max(other),
            _ => one.min(other),
        }
    }

    /// Formats a value for the report.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::RowsPerSecond => format!("{} rows/s", thousands(value)),
            Self::MebibytesPerSecond => format!("{value:.1} MiB/s"),
            Self::MicrosecondsPerRow => format!("{value:.2} µs/row"),
            Self::Milliseconds => format!("{value:.1} ms"),
            Self::Seconds => format!("{value:.2} s"),
            Self::Mebibytes => format!("{value:.0} MiB"),
            Self::Percent | Self::CorePercent | Self::SharePercent => format!("{value:.1}%"),
            Self::Times => format!("{value:.3} x"),
            Self::Rows => thousands(value),
            Self::BytesPerRow => format!("{} B/row", thousands(value)),
            Self::TransactionsPerSecond => format!("{value:.1} tx/s"),
        }
    }
}

/// Formats a whole number with commas, such as 150,000.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 && digits != "0" { format!("-{text}") } else { text }
}

/// The values of one figure, one per run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub unit: Unit,
    pub values: Vec<f64>,
}

impl Figure {
    pub fn best(&self) -> Option<f64> {
        self.values.iter().copied().reduce(|one, other| self.unit.better(one, other))
    }

    /// The median. For an even number of values, the mean of the two in the middle.
    pub fn median(&self) -> Option<f64> {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
    }
}

/// The figures of a part by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(pub BTreeMap<String, Figure>);

impl Figures {
    /// Adds the value of one run.
    pub fn push(&mut self, name: impl Into<String>, unit: Unit, value: f64) {
        let figure = self.0.entry(name.into()).or_insert_with(|| Figure { unit, values: Vec::new() });
        figure.values.push(value);
    }

    /// Adds the values of other figures.
    pub fn append(&mut self, others: Figures) {
        for (name, figure) in others.0 {
            for value in figure.values {
                self.push(name.clone(), figure.unit, value);
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&Figure> {
        self.0.get(name)
    }

    /// The number of runs.
    pub fn runs(&self) -> usize {
        self.0.values().map(|figure| figure.values.len()).max().unwrap_or(0)
    }

    /// One value for all runs of a figure.
    pub fn pick(&self, name: &str, of: Of) -> Option<f64> {
        let figure = self.get(name)?;
        match of {
            Of::Best => figure.best(),
            Of::Median => figure.median(),
        }
    }
}

/// How to pick one value from all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Best,
    Median,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_rate_is_the_highest_and_the_best_cost_the_lowest() {
        let figure = |unit| Figure { unit, values: vec![3.0, 1.0, 2.0] };
        assert_eq!(figure(Unit::RowsPerSecond).best(), Some(3.0));
        assert_eq!(figure(Unit::MicrosecondsPerRow).best(), Some(1.0));
        assert_eq!(Figure { unit: Unit::Times, values: vec![] }.best(), None);
    }

    #[test]
    fn the_median_is_the_middle_value() {
        let median = |values: &[f64]| Figure { unit: Unit::Seconds, values: values.to_vec() }.median();
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn figures_are_formatted_with_their_unit() {
        assert_eq!(Unit::RowsPerSecond.show(1_234_567.8), "1,234,568 rows/s");
        assert_eq!(Unit::RowsPerSecond.show(999.2), "999 rows/s");
        assert_eq!(Unit::Times.show(1.416), "1.416 x");
        assert_eq!(Unit::Rows.show(0.0), "0");
        assert_eq!(Unit::Percent.show(-0.04), "-0.0%");
    }
}
