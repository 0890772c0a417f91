//! The tables of the pages.

use crate::results::{Outcome, Results};
use crate::scenarios::{Check, Target, Verdict, scenarios};

const NOT_MEASURED: &str = "not measured";

/// All results, without targets.
pub fn results_table(results: &Results) -> String {
    let mut text = "\n| Scenario | Measurement | Result |\n|---|---|---|\n".to_owned();
    for scenario in scenarios() {
        for check in &scenario.checks {
            let (result, _) = judged(check, results);
            if result == NOT_MEASURED {
                continue;
            }
            text += &format!("| {} | {} | {result} |\n", scenario.name, check.name);
        }
    }
    text
}

/// All scenarios, with each target next to its result.
pub fn targets_table(results: &Results) -> String {
    let mut text =
        "\n| # | Scenario: measurement | Target | Result | Verdict |\n|---|---|---|---|---|\n".to_owned();
    for scenario in scenarios() {
        for check in &scenario.checks {
            let (result, verdict) = judged(check, results);
            let (number, what) = (scenario.number, format!("{}: {}", scenario.name, check.name));
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
fn judged(check: &Check, results: &Results) -> (String, &'static str) {
    let figures = results.parts.get(check.part).map(|part| &part.figures);
    let Some((figures, value)) = figures.and_then(|figures| Some((figures, check.value(figures)?))) else {
        return (NOT_MEASURED.to_owned(), "");
    };
    let mut result = check.unit.show(value);
    if figures.runs() > 1 {
        let best = check.best(figures).map(|best| check.unit.show(best)).unwrap_or_default();
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
pub fn part(name: &str, part: &Outcome) -> String {
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
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
