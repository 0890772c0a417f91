//! The file that collects results, so that parts can be measured on different days and machines.
//!
//! `benchmarks/results.json` has the newest full run of each part. Reduced runs are kept elsewhere, and never published.

use crate::figures::Figures;
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
    /// Values over time, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Series>,
    /// What a reader has to know about the figures, in whole sentences.
    pub notes: Vec<String>,
}

/// Names and values, in order.
pub type Setting = Vec<(String, String)>;

/// Values over time: minutes since the beginning, and the value.
pub type Series = Vec<(f64, f64)>;

/// All results so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// By the name of the part.
    pub parts: BTreeMap<String, Outcome>,
}

/// The file of the results.
pub struct Store {
    path: PathBuf,
}

impl Store {
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join("results.json") }
    }

    /// The newest full run of each part. scripts/bench runs this program in the root of the repository.
    pub fn published() -> Self {
        Self::new(Path::new("benchmarks"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Unit;

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
}
