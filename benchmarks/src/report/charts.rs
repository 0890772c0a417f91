//! Which charts there are, and what they show.

use super::chart::{Chart, Row};
use crate::bars::{Target, bars};
use crate::figures::{Of, Unit};
use crate::results::Results;

/// The charts whose parts were measured, with the names of their files.
pub fn charts(results: &Results) -> Vec<(&'static str, Chart)> {
    let charts =
        [("drain.svg", drain(results)), ("latency.svg", latency(results)), ("harm.svg", harm(results))];
    charts.into_iter().filter(|(_, chart)| !chart.rows.is_empty()).collect()
}

/// A row for each of these figures that was measured: its median.
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
        title: "Drain of a backlog: rows a second".to_owned(),
        rows: rows(results, "drain", Unit::RowsPerSecond, &figures),
    }
}

fn latency(results: &Results) -> Chart {
    let figures = [
        ("outbox-relay, p50", "1,000 rows/s: p50"),
        ("Debezium, p50", "Debezium: p50"),
        ("outbox-relay, p99", "1,000 rows/s: p99"),
        ("Debezium, p99", "Debezium: p99"),
        ("outbox-relay, p99.9", "1,000 rows/s: p99.9"),
        ("Debezium, p99.9", "Debezium: p99.9"),
    ];
    Chart {
        title: "From the commit to the consumer at 1,000 rows/s: milliseconds".to_owned(),
        rows: rows(results, "steady", Unit::Milliseconds, &figures),
    }
}

/// The bars that ask for a share of the rate that the relay has when nothing stands in its way.
fn harm(results: &Results) -> Chart {
    let mut rows = Vec::new();
    for bar in bars().iter().filter(|bar| [7, 9, 10, 11, 12, 13].contains(&bar.number)) {
        for check in bar.checks.iter().filter(|check| check.unit == Unit::Percent) {
            let target = match check.target {
                Target::AtLeast(least) => least,
                Target::AsFast => 100.0,
                Target::AtMost(_) | Target::Stated => continue,
            };
            let Some(part) = results.parts.get(check.part) else { continue };
            let Some(value) = check.value(&part.figures) else { continue };
            let label = format!("{}: {}", bar.number, check.what);
            rows.push(Row { label, value, text: check.unit.show(value), target: Some(target), ours: true });
        }
    }
    Chart {
        title: "What is left of the rate, in percent, by bar; the red mark is what is asked".to_owned(),
        rows,
    }
}
