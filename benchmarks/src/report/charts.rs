//! The charts and the figures that they show.

use super::chart::{Chart, Row};
use crate::figures::{Of, Unit};
use crate::results::Results;
use crate::scenarios::{Check, Scenario, Target, scenarios};

/// The charts whose parts have results, with their file names.
pub fn charts(results: &Results) -> Vec<(&'static str, Chart)> {
    let charts =
        [("drain.svg", drain(results)), ("latency.svg", latency(results)), (SHARES_FILE, shares(results))];
    charts.into_iter().filter(|(_, chart)| !chart.rows.is_empty()).collect()
}

/// A row with the median of each of these figures that has been measured.
fn rows(results: &Results, part: &str, unit: Unit, figures: &[(&str, &str)]) -> Vec<Row> {
    let Some(part) = results.parts.get(part) else { return Vec::new() };
    let row = |(label, figure): &(&str, &str)| {
        let value = part.figures.pick(figure, Of::Median)?;
        let ours = !label.starts_with("Debezium");
        Some(Row { label: (*label).to_owned(), value, text: unit.show(value), target: None, ours })
    };
    figures.iter().filter_map(row).collect()
}

fn drain(results: &Results) -> Chart {
    let figures = [
        ("outbox-relay, rows deleted", "delete: rate"),
        ("outbox-relay, rows marked", "mark: rate"),
        ("Debezium, tuned", "Debezium: rate"),
    ];
    Chart {
        title: "Drain of a backlog, rows per second".to_owned(),
        rows: rows(results, "drain", Unit::RowsPerSecond, &figures),
    }
}

fn latency(results: &Results) -> Chart {
    let figures = [
        ("outbox-relay, p50", "1,000 rows/s, relay: p50"),
        ("Debezium, p50", "1,000 rows/s, Debezium: p50"),
        ("outbox-relay, p99", "1,000 rows/s, relay: p99"),
        ("Debezium, p99", "1,000 rows/s, Debezium: p99"),
        ("outbox-relay, p99.9", "1,000 rows/s, relay: p99.9"),
        ("Debezium, p99.9", "1,000 rows/s, Debezium: p99.9"),
    ];
    Chart {
        title: "Latency from commit to consumer at 1,000 rows/s, in milliseconds".to_owned(),
        rows: rows(results, "steady", Unit::Milliseconds, &figures),
    }
}

/// The file of the chart of shares. It shows targets, so it belongs to the page of the targets.
pub const SHARES_FILE: &str = "shares.svg";

/// The checks whose target is a share of the undisturbed rate: the number of the scenario, the name of the check, and the
/// label in the chart.
const SHARES: [(u8, &str, &str); 9] = [
    (7, "rate, relative to no held snapshot", "a snapshot is held open"),
    (9, "rate of the others, relative to no held topic", "rows of a held topic come first"),
    (10, "rate, relative to no retained rows", "10,000,000 sent rows retained"),
    (11, "rate, relative to no writers", "writers are active"),
    (12, "rate of 2 relays, relative to 1", "two relays"),
    (12, "rate of 4 relays, relative to 1", "four relays"),
    (13, "1,000 topics", "1,000 topics"),
    (13, "10,000,000 keys", "10,000,000 keys"),
    (13, "payload of 10 B", "payloads of 10 B"),
];

fn shares(results: &Results) -> Chart {
    let scenarios = scenarios();
    let row = |(number, name, label): &(u8, &str, &str)| {
        let check = check(&scenarios, *number, name)?;
        let value = check.value(&results.parts.get(check.part)?.figures)?;
        let target = if let Target::AtLeast(least) = check.target { least } else { 100.0 };
        let text = check.unit.show(value);
        Some(Row { label: (*label).to_owned(), value, text, target: Some(target), ours: true })
    };
    Chart {
        title:
            "Rate under adverse conditions, in percent of the undisturbed rate; the red line is the target"
                .to_owned(),
        rows: SHARES.iter().filter_map(row).collect(),
    }
}

fn check<'a>(scenarios: &'a [Scenario], number: u8, name: &str) -> Option<&'a Check> {
    let scenario = scenarios.iter().find(|scenario| scenario.number == number)?;
    scenario.checks.iter().find(|check| check.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;

    #[test]
    fn each_share_of_the_chart_is_a_check_of_its_scenario() {
        let scenarios = scenarios();
        for (number, name, _) in SHARES {
            let check = check(&scenarios, number, name)
                .unwrap_or_else(|| panic!("scenario {number} has no check {name:?}"));
            assert_eq!(check.unit, Unit::Percent, "scenario {number}: {name}");
        }
    }

    #[test]
    fn a_chart_without_results_is_left_out() {
        let mut drain = Outcome::default();
        drain.figures.push("mark: rate", Unit::RowsPerSecond, 150_000.0);
        drain.figures.push("Debezium: rate", Unit::RowsPerSecond, 75_000.0);
        let mut results = Results::default();
        results.parts.insert("drain".into(), drain);
        let charts = charts(&results);
        assert_eq!(charts.iter().map(|(file, _)| *file).collect::<Vec<_>>(), ["drain.svg"]);
        let ours: Vec<bool> = charts[0].1.rows.iter().map(|row| row.ours).collect();
        assert_eq!(ours, [true, false]);
    }
}
