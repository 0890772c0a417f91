//! The file in which results accumulate, so that parts can be run one after the other and a run be resumed.

use crate::figures::Figures;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What one run of a part found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// When it ended, as `2026-01-31 12:00 UTC`.
    pub at: String,
    /// With fewer rows than the bars speak of.
    pub quick: bool,
    pub figures: Figures,
    /// What a reader has to know beside the figures; each a sentence.
    pub notes: Vec<String>,
}

/// Everything that was measured so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// What the figures were measured on and with: names and values, in order.
    pub setting: Vec<(String, String)>,
    /// By the part's name.
    pub parts: BTreeMap<String, Outcome>,
}

/// Where it is kept.
pub struct Store {
    path: PathBuf,
}

impl Store {
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join("results.json") }
    }

    /// Nothing yet is no error.
    pub fn load(&self) -> anyhow::Result<Results> {
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is not a file of results", self.path.display())),
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => Ok(Results::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        }
    }

    /// Replaces the whole file at once, so that whoever is interrupted leaves the old one or the new one.
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
    fn results_come_back_as_they_were_saved() {
        let folder = std::env::temp_dir().join(format!("outbox-benchmarks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let store = Store::new(&folder);
        assert_eq!(store.load().unwrap(), Results::default());

        let mut outcome = Outcome { at: "2026-01-31 12:00 UTC".into(), quick: true, ..Outcome::default() };
        outcome.figures.push("relay", Unit::RowsPerSecond, 150_000.5);
        outcome.notes.push("A sentence.".into());
        let mut results = Results { setting: vec![("Kafka".into(), "4.3.1".into())], ..Results::default() };
        results.parts.insert("drain".into(), outcome);
        store.save(&results).unwrap();
        assert_eq!(store.load().unwrap(), results);

        std::fs::write(folder.join("results.json"), "not json").unwrap();
        assert!(store.load().is_err(), "a broken file is not taken for no results");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
