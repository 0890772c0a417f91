//! Which charts there are, and what they show.

use super::chart::{Chart, Row};
use crate::bars::{Bar, Check, Target, bars};
use crate::figures::{Of, Unit};
use crate::results::Results;

/// The charts whose parts were measured, with the names of their files.
pub fn charts(results: &Results) -> Vec<(&'static str, Chart)> {
    let charts =
        [("drain.svg", drain(results)), ("latency.svg", latency(results)), ("shares.svg", shares(results))];
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

/// The bars that ask for a share of the rate that the relay has when nothing stands in its way: number, check, and how the
/// chart calls it.
const SHARES: [(u8, &str, &str); 9] = [
    (7, "of the free rate", "a snapshot is held open"),
    (9, "the others, of the free rate", "rows of a held topic in front"),
    (10, "of the rate without", "10,000,000 sent rows retained"),
    (11, "of the drain rate", "writers go on meanwhile"),
    (12, "2 relays, of one's rate", "two relays"),
    (12, "4 relays, of one's rate", "four relays"),
    (13, "1,000 topics", "1,000 topics"),
    (13, "10,000,000 keys", "10,000,000 keys"),
    (13, "payload of 10 B", "payloads of 10 B"),
];

fn shares(results: &Results) -> Chart {
    let bars = bars();
    let row = |(number, what, label): &(u8, &str, &str)| {
        let check = check(&bars, *number, what)?;
        let value = check.value(&results.parts.get(check.part)?.figures)?;
        let target = if let Target::AtLeast(least) = check.target { least } else { 100.0 };
        let text = check.unit.show(value);
        Some(Row { label: (*label).to_owned(), value, text, target: Some(target), ours: true })
    };
    Chart {
        title: "What is left of the drain's rate, in percent; the red mark is what is asked".to_owned(),
        rows: SHARES.iter().filter_map(row).collect(),
    }
}

fn check<'a>(bars: &'a [Bar], number: u8, what: &str) -> Option<&'a Check> {
    let bar = bars.iter().find(|bar| bar.number == number)?;
    bar.checks.iter().find(|check| check.what == what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;

    #[test]
    fn each_share_of_the_chart_is_a_check_of_its_bar() {
        let bars = bars();
        for (number, what, _) in SHARES {
            let check =
                check(&bars, number, what).unwrap_or_else(|| panic!("bar {number} has no check {what:?}"));
            assert_eq!(check.unit, Unit::Percent, "bar {number}: {what}");
        }
    }

    #[test]
    fn a_chart_of_which_nothing_was_measured_is_left_out() {
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
