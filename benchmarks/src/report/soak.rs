//! The section of the long run.

use super::lines::{Line, Lines, Panel};
use crate::parts::soak::{DEAD, INDEXES, MEMORY, P50, P99, TABLE};
use crate::results::{Outcome, Results};

pub const FILE: &str = "soak.svg";

const TITLE: &str = "One hour at 1,000 rows/s";
const BEGINNING: &str = "
### One hour at 1,000 rows/s

Events are kept for ten minutes, so the reaper deletes as many as arrive for most of the hour. Autovacuum has the default settings. Latency
is the p50 and the p99 of each minute. The sizes are read every half minute.
";

pub fn section(results: &Results) -> String {
    match results.parts.get("soak") {
        Some(_) => format!("{BEGINNING}\n![{TITLE}](images/{FILE})\n"),
        None => String::new(),
    }
}

pub fn chart(results: &Results) -> Option<Lines> {
    let part = results.parts.get("soak")?;
    let panels = [
        ("Latency in milliseconds", &[P50, P99][..]),
        ("Table and indexes in MiB", &[TABLE, INDEXES]),
        ("Dead rows in thousands", &[DEAD]),
        ("Memory of the relay in MiB", &[MEMORY]),
    ];
    let panels = panels.map(|(title, names)| Panel {
        title: title.to_owned(),
        lines: names.iter().map(|name| line(part, name)).collect(),
    });
    Some(Lines { title: TITLE.to_owned(), unit_of_time: "minutes".to_owned(), panels: panels.into() })
}

fn line(part: &Outcome, name: &str) -> Line {
    let points = part.series.get(name).cloned().unwrap_or_default();
    let scale = if name == DEAD { 1e-3 } else { 1.0 };
    Line {
        label: name.to_owned(),
        points: points.into_iter().map(|(at, value)| (at, value * scale)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_shows_each_series_and_is_absent_without_results() {
        let mut results = Results::default();
        assert!(chart(&results).is_none() && section(&results).is_empty());
        let mut part = Outcome::default();
        for (name, value) in
            [(P50, 4.0), (P99, 9.0), (TABLE, 200.0), (INDEXES, 50.0), (DEAD, 7_000.0), (MEMORY, 25.0)]
        {
            part.series.insert(name.to_owned(), vec![(0.0, value), (60.0, value)]);
        }
        results.parts.insert("soak".to_owned(), part);
        let chart = chart(&results).unwrap();
        let last: Vec<f64> =
            chart.panels.iter().flat_map(|panel| &panel.lines).map(|line| line.points[1].1).collect();
        assert_eq!(last, [4.0, 9.0, 200.0, 50.0, 7.0, 25.0]);
        assert!(section(&results).contains("images/soak.svg"));
    }
}
