//! The report of `doctor`, as text and as the object of `--json`.

use crate::cli::exit::Failed;
use crate::cli::terminal::output::{commands, counted, in_line};
use crate::config::Config;
use serde::Serialize;
use settings::doctor::{self, Severity};
use std::fmt;

/// Texts from servers, and names, are cut to this length.
const TEXT_SHOWN: usize = 2_000;

/// The object of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    table: String,
    relay_version: &'static str,
    pub(super) errors: usize,
    warnings: usize,
    notes: usize,
    findings: Vec<FindingJson>,
}

#[derive(Debug, Serialize)]
struct FindingJson {
    severity: &'static str,
    code: &'static str,
    place: String,
    problem: String,
    means: &'static str,
    remedy: String,
}

impl Report {
    pub(super) fn new(config: &Config, findings: &[doctor::Finding]) -> Report {
        let count = |severity| findings.iter().filter(|finding| finding.code.severity == severity).count();
        Report {
            table: config.outbox.table.to_string(),
            relay_version: env!("CARGO_PKG_VERSION"),
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            notes: count(Severity::Note),
            findings: findings.iter().map(FindingJson::from).collect(),
        }
    }

    pub(super) fn json(&self) -> Result<String, Failed> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("writing JSON")))?;
        Ok(json + "\n")
    }
}

impl From<&doctor::Finding> for FindingJson {
    fn from(finding: &doctor::Finding) -> FindingJson {
        FindingJson {
            severity: finding.code.severity.word(),
            code: finding.code.word,
            place: finding.place.clone(),
            problem: finding.problem.clone(),
            means: finding.code.means,
            remedy: commands(&finding.remedy).into_owned(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let shown = |text: &str| in_line(text, TEXT_SHOWN);
            writeln!(f, "{:<8} {}  {}", finding.severity, finding.code, shown(&finding.place))?;
            writeln!(f, "         {}", shown(&finding.problem))?;
            writeln!(f, "         means: {}", finding.means)?;
            writeln!(f, "         fix:   {}", shown(&finding.remedy))?;
        }
        if self.findings.is_empty() {
            return writeln!(f, "{}: no problems found ({} checks)", self.table, super::all().count());
        }
        writeln!(
            f,
            "{}: {}, {}, {}",
            self.table,
            counted(self.errors as u64, "error"),
            counted(self.warnings as u64, "warning"),
            counted(self.notes as u64, "note")
        )
    }
}
