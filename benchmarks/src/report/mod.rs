//! From results to `docs/benchmarks.md` and its charts. Everything that is said there of figures is computed here.

mod chart;
mod charts;
mod prose;
mod table;

use crate::parts::Part;
use crate::results::Results;
use anyhow::Context;
use std::path::Path;

/// Writes the page and its charts into the folder `docs`.
pub fn write(results: &Results, docs: &Path) -> anyhow::Result<()> {
    let images = docs.join("images");
    std::fs::create_dir_all(&images).with_context(|| format!("cannot make {}", images.display()))?;
    let charts = charts::charts(results);
    for (file, chart) in &charts {
        write_file(&images.join(file), &chart.svg())?;
    }
    let shown: Vec<(&str, &str)> = charts.iter().map(|(file, chart)| (*file, chart.title.as_str())).collect();
    write_file(&docs.join("benchmarks.md"), &page(results, &shown))
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The page. `charts` are the files in `images/` and their titles.
fn page(results: &Results, charts: &[(&str, &str)]) -> String {
    let mut page = prose::BEGINNING.to_owned();
    if results.parts.values().any(|part| part.quick) {
        page += prose::QUICK;
    }
    page += &table::bars_table(results);
    for (file, title) in charts {
        page += &format!("\n![{title}](images/{file})\n");
    }
    page += "\n";
    page += prose::TRIED;
    page += prose::METHOD;
    page += &table::setting(results);
    page += prose::NOT_MEASURED;
    page += "\n## Every run\n";
    for part in Part::chosen(&[]) {
        if let Some(outcome) = results.parts.get(part.name()) {
            page += &table::part(part.name(), outcome);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Unit;
    use crate::results::Outcome;

    fn results(quick: bool) -> Results {
        let mut drain = Outcome { at: "2026-01-31 12:00 UTC".into(), quick, ..Outcome::default() };
        for rate in [150_000.0, 140_000.0, 145_000.0] {
            drain.figures.push("mark: rate", Unit::RowsPerSecond, rate);
            drain.figures.push("Debezium: rate", Unit::RowsPerSecond, rate / 2.0);
        }
        drain.figures.push("mark: of the CPU limit", Unit::Percent, 80.0);
        drain.notes.push("Debezium was warm.".into());
        let mut results = Results { setting: vec![("CPU".into(), "a | b".into())], ..Results::default() };
        results.parts.insert("drain".into(), drain);
        results
    }

    #[test]
    fn each_bar_stands_beside_its_result_and_what_is_missing_is_said() {
        let page = page(&results(false), &[("drain.svg", "Drain")]);
        for expected in [
            "| 1 | drain of a backlog, `on_sent = \"mark\"`: rate |  | 145,000 rows/s (best 150,000 rows/s) |  |",
            "| 1 | tuned Debezium's rate | ≥ 1.40 x | 2.00 x (best 2.00 x) | met |",
            "| 1 | of the limit set by CPU | ≥ 85.0 % | 80.0 % (best 80.0 %) | **missed** |",
            "not measured",
            "![Drain](images/drain.svg)",
            "| Debezium: rate | 75,000 rows/s | 72,500 rows/s | 75,000 rows/s, 70,000 rows/s, 72,500 rows/s |",
            "Debezium was warm.",
            "a \\| b",
        ] {
            assert!(page.contains(expected), "{expected:?} is in:\n{page}");
        }
        assert!(!page.contains("do not quote"), "{page}");
    }

    #[test]
    fn a_quick_run_says_that_it_is_one() {
        assert!(page(&results(true), &[]).contains("do not quote"));
    }
}
