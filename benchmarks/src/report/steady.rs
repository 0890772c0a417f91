//! The table of the steady rates.

use crate::figures::{Of, Unit};
use crate::parts::steady::{DEBEZIUM, RATES, RELAY, WRITERS};
use crate::results::Results;

const BEGINNING: &str = "
### Steady rates

Writers insert rows at a fixed rate, with the relay, with Debezium, and without either. *Added* is the CPU time of PostgreSQL in addition to
the writers alone. Each figure is the median of the runs.

| Rate | Program | p50 | p90 | p99 | p99.9 | PostgreSQL | Added | Own CPU | Kafka | WAL | Transactions |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// One row for each rate and program. Empty if nothing was measured.
pub fn table(results: &Results) -> String {
    let Some(part) = results.parts.get("steady") else { return String::new() };
    let value = |rate: &str, program: &str, figure: &str| {
        part.figures.pick(&format!("{rate}, {program}: {figure}"), Of::Median)
    };
    let mut text = BEGINNING.to_owned();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;

    #[test]
    fn the_cost_of_postgresql_is_shown_with_and_without_the_writers() {
        let mut steady = Outcome::default();
        for (program, cost) in [(RELAY, 150.0), (WRITERS, 100.0)] {
            let figure = format!("100 rows/s, {program}: CPU of PostgreSQL");
            steady.figures.push(figure, Unit::MicrosecondsPerRow, cost);
        }
        steady.figures.push("100 rows/s, relay: p50", Unit::Milliseconds, 4.0);
        let mut results = Results::default();
        assert_eq!(table(&results), "");
        results.parts.insert("steady".to_owned(), steady);
        let table = table(&results);
        let row = "| 100 rows/s | relay | 4.0 ms |  |  |  | 150.00 µs/row | 50.00 µs/row |  |  |  |  |";
        assert!(table.contains(row), "{table}");
    }
}
