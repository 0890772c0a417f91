//! Writes `docs/benchmarks.md`, the pages in `benchmarks/` and the charts from the results. Every figure in them is computed
//! here.

mod chart;
mod charts;
mod lines;
mod prose;
mod settings;
mod soak;
mod steady;
mod table;

use crate::parts::Part;
use crate::results::Results;
use anyhow::Context;
use std::path::Path;

/// Writes the page and the charts into the folder `docs`, and the pages of the targets and of the runs into the folder
/// `benchmarks`.
pub fn write(results: &Results, docs: &Path, benchmarks: &Path) -> anyhow::Result<()> {
    let images = docs.join("images");
    std::fs::create_dir_all(&images).with_context(|| format!("cannot create {}", images.display()))?;
    let charts = charts::charts(results);
    for (file, chart) in &charts {
        write_file(&images.join(file), &chart.svg())?;
    }
    if let Some(chart) = soak::chart(results) {
        write_file(&images.join(soak::FILE), &chart.svg())?;
    }
    let shown: Vec<(&str, &str)> = charts.iter().map(|(file, chart)| (*file, chart.title.as_str())).collect();
    write_file(&docs.join("benchmarks.md"), &page(results, &shown))?;
    write_file(&benchmarks.join("TARGETS.md"), &targets_page(results, &shown))?;
    write_file(&benchmarks.join("RUNS.md"), &runs_page(results))
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The page. `charts` are the file names in `images/` and the titles.
fn page(results: &Results, charts: &[(&str, &str)]) -> String {
    let mut page = format!("{}{}", prose::BEGINNING, table::results_table(results));
    for (file, title) in charts.iter().filter(|(file, _)| *file != charts::SHARES_FILE) {
        page += &format!("\n![{title}](images/{file})\n");
    }
    page += &steady::table(results);
    page += &soak::section(results);
    page += prose::METHOD;
    page += &settings::table(results);
    page += prose::NOT_MEASURED;
    page
}

/// The page of all runs.
fn runs_page(results: &Results) -> String {
    let mut page = prose::RUNS.to_owned();
    for part in Part::chosen(&[]) {
        if let Some(outcome) = results.parts.get(part.name()) {
            page += &table::part(part.name(), outcome);
        }
    }
    page
}

/// The page of the targets.
fn targets_page(results: &Results, charts: &[(&str, &str)]) -> String {
    let mut page = format!("{}{}", prose::TARGETS, table::targets_table(results));
    for (file, title) in charts.iter().filter(|(file, _)| *file == charts::SHARES_FILE) {
        page += &format!("\n![{title}](../docs/images/{file})\n");
    }
    page + "\n" + prose::TRIED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Unit;
    use crate::results::Outcome;

    fn results() -> Results {
        let setting = vec![("CPU".into(), "a | b".into())];
        let mut drain = Outcome { at: "2026-01-31 12:00 UTC".into(), setting, ..Outcome::default() };
        for rate in [150_000.0, 140_000.0, 145_000.0] {
            drain.figures.push("mark: rate", Unit::RowsPerSecond, rate);
            drain.figures.push("Debezium: rate", Unit::RowsPerSecond, rate / 2.0);
        }
        drain.figures.push("mark: of the CPU limit", Unit::Percent, 80.0);
        drain.notes.push("Debezium was warm.".into());
        let mut results = Results::default();
        results.parts.insert("drain".into(), drain);
        results
    }

    #[test]
    fn the_page_contains_each_result_and_the_machine() {
        let page = page(&results(), &[("drain.svg", "Drain"), ("shares.svg", "Shares")]);
        for expected in [
            "| drain of a backlog, `on_sent = \"mark\"` | rate | 145,000 rows/s (best 150,000 rows/s) |",
            "| drain of a backlog, `on_sent = \"mark\"` | rate, relative to tuned Debezium | 2.000 x (best 2.000 x) |",
            "![Drain](images/drain.svg)",
            "a \\| b",
        ] {
            assert!(page.contains(expected), "{expected:?} is missing from:\n{page}");
        }
        assert!(!page.contains("shares.svg") && !page.contains("not measured"), "{page}");
    }

    #[test]
    fn the_runs_have_every_value_and_the_notes() {
        let page = runs_page(&results());
        for expected in [
            "| Debezium: rate | 75,000 rows/s | 72,500 rows/s | 75,000 rows/s, 70,000 rows/s, 72,500 rows/s |",
            "Debezium was warm.",
        ] {
            assert!(page.contains(expected), "{expected:?} is missing from:\n{page}");
        }
    }

    #[test]
    fn the_targets_contain_each_scenario_with_its_result_and_verdict() {
        let page = targets_page(&results(), &[("drain.svg", "Drain"), ("shares.svg", "Shares")]);
        let drain = "drain of a backlog, `on_sent = \"mark\"`";
        for expected in [
            format!("| 1 | {drain}: rate |  | 145,000 rows/s (best 150,000 rows/s) |  |"),
            format!(
                "| 1 | {drain}: rate, relative to tuned Debezium | ≥ 1.400 x | 2.000 x (best 2.000 x) | met |"
            ),
            format!(
                "| 1 | {drain}: rate, relative to the CPU limit | ≥ 85.0% | 80.0% (best 80.0%) | **missed** |"
            ),
            "not measured".to_owned(),
            "![Shares](../docs/images/shares.svg)".to_owned(),
            "## What was tried".to_owned(),
        ] {
            assert!(page.contains(&expected), "{expected:?} is missing from:\n{page}");
        }
    }
}
