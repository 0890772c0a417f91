//! Writes `docs/benchmarks.md`, the pages in `bench/` and the charts from the results. Every figure in them is computed here.
//! The text around the tables is in `bench/pages/`.

use super::charts::{SHARES_FILE, SOAK_TITLE, charts, soak};
use super::rates::{DEBEZIUM, RATES, RELAY, WRITERS};
use super::results::{Of, Outcome, Results, Setting, Unit};
use super::scenarios::{Check, SCENARIOS, Target, Verdict};
use super::{PARTS, Part};
use anyhow::Context;
use std::path::Path;

const PAGE: &str = include_str!("../../pages/benchmarks.md.in");
const TARGETS: &str = include_str!("../../pages/targets.md.in");
const RUNS: &str = include_str!("../../pages/runs.md.in");

const STEADY: &str = "
### Steady rates

Writers insert rows at a fixed rate, with the relay, with Debezium, and without either. *Added* is the CPU time of PostgreSQL in addition to
the writers alone. Each figure is the median of the runs.

| Rate | Program | p50 | p90 | p99 | p99.9 | PostgreSQL | Added | Own CPU | Kafka | WAL | Transactions |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

const SOAK_FILE: &str = "soak.svg";
const SOAK: &str = "
Events are kept for ten minutes, so the reaper deletes as many as arrive for most of the hour. Autovacuum has the default settings. Latency
is the p50 and the p99 of each minute. The sizes are read every half minute.
";

const NOT_MEASURED: &str = "not measured";

/// A setting, and the names of the parts that were measured with it.
type Column<'a> = (&'a Setting, Vec<&'static str>);

/// Writes the page and the charts into the folder `docs`, and the pages of the targets and of the runs into the folder
/// `benchmarks`.
pub fn write(results: &Results, docs: &Path, benchmarks: &Path) -> anyhow::Result<()> {
    let images = docs.join("images");
    std::fs::create_dir_all(&images).with_context(|| format!("cannot create {}", images.display()))?;
    let charts = charts(results);
    for (file, chart) in &charts {
        write_file(&images.join(file), &chart.svg())?;
    }
    if let Some(chart) = soak(results) {
        write_file(&images.join(SOAK_FILE), &chart.svg())?;
    }
    let shown: Vec<(&str, &str)> = charts.iter().map(|(file, chart)| (*file, chart.title)).collect();
    write_file(&docs.join("benchmarks.md"), &page(results, &shown))?;
    write_file(&benchmarks.join("TARGETS.md"), &targets_page(results, &shown))?;
    write_file(&benchmarks.join("RUNS.md"), &runs_page(results))
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Fills in the lines of a page that are comments, such as `<!-- results -->`.
fn fill(page: &str, tables: &[(&str, String)]) -> String {
    let fill =
        |page: String, (name, text): &(&str, String)| page.replace(&format!("<!-- {name} -->\n"), text);
    tables.iter().fold(page.to_owned(), fill)
}

/// The page. `charts` are the file names in `images/` and the titles.
fn page(results: &Results, charts: &[(&str, &str)]) -> String {
    let charts = charts.iter().filter(|(file, _)| *file != SHARES_FILE);
    let charts: String = charts.map(|(file, title)| format!("\n![{title}](images/{file})\n")).collect();
    let soak = match results.parts.get("soak") {
        Some(_) => format!("\n### {SOAK_TITLE}\n{SOAK}\n![{SOAK_TITLE}](images/{SOAK_FILE})\n"),
        None => String::new(),
    };
    fill(
        PAGE,
        &[
            ("results", results_table(results)),
            ("charts", charts),
            ("steady", steady_table(results)),
            ("soak", soak),
            ("settings", settings_table(results)),
        ],
    )
}

fn runs_page(results: &Results) -> String {
    let outcome = |part: &Part| Some(part_runs(part.name, results.parts.get(part.name)?));
    fill(RUNS, &[("runs", PARTS.iter().filter_map(outcome).collect())])
}

fn targets_page(results: &Results, charts: &[(&str, &str)]) -> String {
    let charts = charts.iter().filter(|(file, _)| *file == SHARES_FILE);
    let charts = charts.map(|(file, title)| format!("\n![{title}](../docs/images/{file})\n"));
    fill(TARGETS, &[("targets", targets_table(results)), ("charts", charts.collect())])
}

/// All results, without targets.
fn results_table(results: &Results) -> String {
    let mut text = "\n| Scenario | Measurement | Result |\n|---|---|---|\n".to_owned();
    for scenario in SCENARIOS {
        for check in scenario.checks {
            let (result, _) = judged(results, scenario.part_of(check), check);
            if result == NOT_MEASURED {
                continue;
            }
            text += &format!("| {} | {} | {result} |\n", scenario.name, check.name);
        }
    }
    text
}

/// All scenarios, with each target next to its result.
fn targets_table(results: &Results) -> String {
    let mut text =
        "\n| # | Scenario: measurement | Target | Result | Verdict |\n|---|---|---|---|---|\n".to_owned();
    for (number, scenario) in (1..).zip(SCENARIOS) {
        for check in scenario.checks {
            let (result, verdict) = judged(results, scenario.part_of(check), check);
            let what = format!("{}: {}", scenario.name, check.name);
            text += &format!("| {number} | {what} | {} | {result} | {verdict} |\n", target_text(check));
        }
    }
    text
}

fn target_text(check: &Check) -> String {
    match check.target {
        Target::AtLeast(least) => format!("≥ {}", check.unit.show(least)),
        Target::AtMost(most) => format!("≤ {}", check.unit.show(most)),
        Target::AsFast => "100%".to_owned(),
        Target::Stated => String::new(),
    }
}

/// The result, the best run if there were several, and the verdict.
fn judged(results: &Results, part: &str, check: &Check) -> (String, &'static str) {
    let figures = results.parts.get(part).map(|part| &part.figures);
    let Some((figures, value)) =
        figures.and_then(|figures| Some((figures, check.value(figures, Of::Median)?)))
    else {
        return (NOT_MEASURED.to_owned(), "");
    };
    let mut result = check.unit.show(value);
    if figures.runs() > 1 {
        let best = check.value(figures, Of::Best).map(|best| check.unit.show(best)).unwrap_or_default();
        result += &format!(" (best {best})");
    }
    let verdict = match check.judge(value) {
        Verdict::Met => "met",
        Verdict::Equal => "met, within noise",
        Verdict::Missed => "**missed**",
        Verdict::Stated => "",
    };
    (result, verdict)
}

/// One part: each figure of each run, and its notes.
fn part_runs(name: &str, part: &Outcome) -> String {
    let mut text = format!("\n## {name}\n\nMeasured {}.", part.at);
    for note in &part.notes {
        text += &format!(" {note}");
    }
    text += "\n\n| Figure | Best | Median | Runs |\n|---|---|---|---|\n";
    for (name, figure) in &part.figures.0 {
        let show = |value: Option<f64>| value.map(|value| figure.unit.show(value)).unwrap_or_default();
        let runs: Vec<String> = figure.values.iter().map(|value| figure.unit.show(*value)).collect();
        let (best, median) = (show(figure.best()), show(figure.median()));
        text += &format!("| {} | {best} | {median} | {} |\n", cell(name), runs.join(", "));
    }
    text
}

/// Escapes text so that it cannot end its table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// One row for each rate and program. Empty if nothing was measured.
fn steady_table(results: &Results) -> String {
    let Some(part) = results.parts.get("steady") else { return String::new() };
    let value = |rate: &str, program: &str, figure: &str| {
        part.figures.pick(&format!("{rate}, {program}: {figure}"), Of::Median)
    };
    let mut text = STEADY.to_owned();
    for (rate, ..) in RATES {
        for program in [RELAY, DEBEZIUM, WRITERS] {
            let show = |figure, unit: Unit| {
                value(rate, program, figure).map(|value| unit.show(value)).unwrap_or_default()
            };
            let postgres = "CPU of PostgreSQL";
            let added = value(rate, program, postgres)
                .zip(value(rate, WRITERS, postgres))
                .filter(|_| program != WRITERS)
                .map(|(with, without)| Unit::MicrosecondsPerRow.show(with - without));
            let latency = ["p50", "p90", "p99", "p99.9"].map(|figure| show(figure, Unit::Milliseconds));
            let cost = |figure| {
                if program == WRITERS { String::new() } else { show(figure, Unit::MicrosecondsPerRow) }
            };
            text += &format!(
                "| {rate} | {program} | {} | {} | {} | {} | {} | {} |\n",
                latency.join(" | "),
                show(postgres, Unit::MicrosecondsPerRow),
                added.unwrap_or_default(),
                [cost("its CPU"), cost("CPU of Kafka")].join(" | "),
                show("WAL", Unit::BytesPerRow),
                show("transactions", Unit::TransactionsPerSecond),
            );
        }
    }
    text
}

/// The machines, versions and settings. Parts that were measured with the same ones share a column.
fn settings_table(results: &Results) -> String {
    let columns = columns(results);
    let heads: Vec<String> = columns.iter().map(|(_, parts)| parts.join(", ")).collect();
    let mut text = format!("\n| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(columns.len()));
    for name in names(&columns) {
        let values: Vec<String> = columns.iter().map(|(setting, _)| cell(value(setting, name))).collect();
        text += &format!("| {} | {} |\n", cell(name), values.join(" | "));
    }
    text
}

fn columns(results: &Results) -> Vec<Column<'_>> {
    let mut columns: Vec<Column<'_>> = Vec::new();
    for part in PARTS {
        let Some(outcome) = results.parts.get(part.name) else { continue };
        match columns.iter_mut().find(|(setting, _)| **setting == outcome.setting) {
            Some((_, parts)) => parts.push(part.name),
            None => columns.push((&outcome.setting, vec![part.name])),
        }
    }
    columns
}

/// The names of all values, in the order in which they first appear.
fn names<'a>(columns: &[Column<'a>]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|(setting, _)| setting.iter()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

fn value<'a>(setting: &'a Setting, name: &str) -> &'a str {
    setting.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(
            !page.contains("shares.svg") && !page.contains("not measured") && !page.contains("<!--"),
            "{page}"
        );
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

    #[test]
    fn the_cost_of_postgresql_is_shown_with_and_without_the_writers() {
        let mut steady = Outcome::default();
        for (program, cost) in [(RELAY, 150.0), (WRITERS, 100.0)] {
            let figure = format!("100 rows/s, {program}: CPU of PostgreSQL");
            steady.figures.push(figure, Unit::MicrosecondsPerRow, cost);
        }
        steady.figures.push("100 rows/s, relay: p50", Unit::Milliseconds, 4.0);
        let mut results = Results::default();
        assert_eq!(steady_table(&results), "");
        results.parts.insert("steady".to_owned(), steady);
        let table = steady_table(&results);
        let row = "| 100 rows/s | relay | 4.0 ms |  |  |  | 150.00 µs/row | 50.00 µs/row |  |  |  |  |";
        assert!(table.contains(row), "{table}");
    }

    #[test]
    fn parts_with_the_same_setting_share_a_column() {
        let mut results = Results::default();
        for (part, cpu) in [("drain", "fast"), ("debezium", "fast"), ("steady", "slow")] {
            let setting = vec![("CPU".to_owned(), cpu.to_owned())];
            results.parts.insert(part.to_owned(), Outcome { setting, ..Outcome::default() });
        }
        assert_eq!(
            settings_table(&results),
            "\n| | debezium, drain | steady |\n|---|---|---|\n| CPU | fast | slow |\n"
        );
    }

    #[test]
    fn the_long_run_has_a_section_if_it_was_measured() {
        let mut results = results();
        assert!(!page(&results, &[]).contains("soak.svg"));
        results.parts.insert("soak".to_owned(), Outcome::default());
        assert!(page(&results, &[]).contains("images/soak.svg"));
    }
}
