//! Figures: what a part measured in each run, with a unit. And the file that collects them, so that parts can be measured
//! on different days and machines.
//!
//! `bench/results.json` has the newest full run of each part. Reduced runs are kept elsewhere, and never published.

use crate::table::number;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The results of one run of a part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// When it ended, such as `2026-01-31 12:00 UTC`.
    pub at: String,
    /// The machine, the versions and the settings: names and values, in order.
    pub setting: Setting,
    pub figures: Figures,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Series>,
    /// What a reader has to know about the figures, in whole sentences.
    pub notes: Vec<String>,
}

pub type Setting = Vec<(String, String)>;

/// Values over time: minutes since the beginning, and the value.
pub type Series = Vec<(f64, f64)>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub parts: BTreeMap<String, Outcome>,
}

pub struct Store {
    path: PathBuf,
}

impl Store {
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join("results.json") }
    }

    /// The results of full runs. scripts/bench runs this program in the root of the repository.
    pub fn published() -> Self {
        Self::new(Path::new("bench"))
    }

    /// A missing file means that there are no results yet.
    pub fn load(&self) -> anyhow::Result<Results> {
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is not a valid results file", self.path.display())),
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => Ok(Results::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        }
    }

    /// Replaces the whole file atomically, so that an interruption leaves either the old file or the new one.
    pub fn save(&self, results: &Results) -> anyhow::Result<()> {
        let new = self.path.with_extension("json.new");
        std::fs::write(&new, serde_json::to_vec_pretty(results)?)
            .and_then(|()| std::fs::rename(&new, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

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
    CorePercent,
    /// Percent of a whole. Less is better.
    SharePercent,
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
            Self::RowsPerSecond => format!("{} rows/s", number(value)),
            Self::MebibytesPerSecond => format!("{value:.1} MiB/s"),
            Self::MicrosecondsPerRow => format!("{value:.2} µs/row"),
            Self::Milliseconds => format!("{value:.1} ms"),
            Self::Seconds => format!("{value:.2} s"),
            Self::Mebibytes => format!("{value:.0} MiB"),
            Self::Percent | Self::CorePercent | Self::SharePercent => format!("{value:.1}%"),
            Self::Times => format!("{value:.3} x"),
            Self::Rows => number(value),
            Self::BytesPerRow => format!("{} B/row", number(value)),
            Self::TransactionsPerSecond => format!("{value:.1} tx/s"),
        }
    }
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

    pub fn runs(&self) -> usize {
        self.0.values().map(|figure| figure.values.len()).max().unwrap_or(0)
    }

    pub fn pick(&self, name: &str, of: Of) -> Option<f64> {
        let figure = self.0.get(name)?;
        match of {
            Of::Best => figure.best(),
            Of::Median => figure.median(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Best,
    Median,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_results_are_loaded_unchanged() {
        let folder = std::env::temp_dir().join(format!("outbox-benchmarks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let store = Store::new(&folder);
        assert_eq!(store.load().unwrap(), Results::default());

        let setting = vec![("Kafka".into(), "4.3.1".into())];
        let mut outcome = Outcome { at: "2026-01-31 12:00 UTC".into(), setting, ..Outcome::default() };
        outcome.figures.push("relay", Unit::RowsPerSecond, 150_000.5);
        outcome.notes.push("A sentence.".into());
        let mut results = Results::default();
        results.parts.insert("drain".into(), outcome);
        store.save(&results).unwrap();
        assert_eq!(store.load().unwrap(), results);

        std::fs::write(folder.join("results.json"), "not json").unwrap();
        assert!(store.load().is_err(), "an invalid file counts as no results");
        std::fs::remove_dir_all(&folder).unwrap();
    }

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
