//! Drains of a backlog: scenarios 1 to 4, 8 and 13, and the search for the fastest settings of Debezium.

use super::debezium::{Connect, Tuning};
use super::results::{Of, Results, Unit};
use super::run::{MIB, Run, reference};
use crate::load::Shape;
use crate::table::number;

const BEST: Tuning = Tuning::DEFAULT;
const TUNINGS: [Tuning; 8] = [
    BEST,
    Tuning { batch_rows: 2_048, ..BEST },
    Tuning { linger_ms: 0, ..BEST },
    Tuning { linger_ms: 20, ..BEST },
    Tuning { needed_columns: false, ..BEST },
    Tuning { heap: "2g", ..BEST },
    Tuning { collector: "Serial", ..BEST },
    Tuning { collector: "G1", ..BEST },
];
/// Drains before the measurement, so that the JVM has compiled the hot code.
const WARM_UPS: u32 = 2;
/// How much faster than the default another setting has to be to count as faster.
const NOTABLY: f64 = 1.03;
/// The values of Debezium's `max.batch.size` to try. The relay is compared with the best one.
const BATCHES: [u32; 3] = [4_096, 8_192, 16_384];

/// A topic accepts records of 1 MiB by default, including the key, the headers and the framing.
const NEARLY_A_MIB: usize = (1 << 20) - 1_024;
/// The default of topics. librdkafka's own default is smaller.
const RECORD_BYTES_MAX: &str = "1048588";

/// Other settings of Debezium's JVM and connector, each in a separate JVM, to find the fastest.
pub async fn tunings(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(500_000));
    for tuning in TUNINGS {
        let mut connect = run.world.start_connect(tuning).await?;
        for drained in 0..WARM_UPS + run.size.runs {
            let drain = run.debezium_drains(&mut connect, &shape, tuning).await?;
            if drained >= WARM_UPS {
                run.note_drain(&tuning.to_string(), &drain);
            }
        }
        connect.stop().await?;
    }
    let note = format!("Before the measurement, each JVM drained the rows {WARM_UPS} times.");
    run.outcome.notes.push(note);
    Ok(())
}

/// The settings of Debezium that the relay is compared with: the fastest ones that were tried, or the default if none
/// were.
pub fn fastest_debezium(results: &Results) -> Tuning {
    let rate = |tuning: Tuning| {
        let figures = &results.parts.get("debezium")?.figures;
        figures.pick(&format!("{tuning}: rate"), Of::Median)
    };
    let mut fastest = (rate(BEST).unwrap_or(f64::MAX) * NOTABLY, BEST);
    for tuning in TUNINGS {
        if let Some(rate) = rate(tuning).filter(|rate| *rate > fastest.0) {
            fastest = (rate, tuning);
        }
    }
    fastest.1
}

/// Scenarios 1 to 3 and the first measurement of scenario 4: a relay that marks, a relay that deletes, and Debezium
/// drain a backlog in turn.
pub async fn comparison(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(2_000_000));
    let fastest = run.world.fastest_debezium()?;
    let mut connect = run.world.start_connect(fastest).await?;
    let tuning = best_batches(run, &mut connect, &shape, fastest).await?;
    for _ in 0..run.size.runs {
        for on_sent in ["mark", "delete"] {
            let change = |settings: crate::settings::Settings| settings.with("outbox", "on_sent", on_sent);
            let drain = run.relay_drains(&shape, change).await?;
            run.note_drain(on_sent, &drain);
        }
        let drain = run.debezium_drains(&mut connect, &shape, tuning).await?;
        run.note_drain("Debezium", &drain);
    }
    connect.stop().await
}

/// Warms up the JVM with drains that do not count, and finds the best batch size.
async fn best_batches(
    run: &mut Run<'_>,
    connect: &mut Connect,
    shape: &Shape,
    fastest: Tuning,
) -> anyhow::Result<Tuning> {
    run.debezium_drains(connect, shape, fastest).await?;
    let mut best = (0.0, fastest);
    for batch_rows in BATCHES {
        let tuning = Tuning { batch_rows, ..fastest };
        let drain = run.debezium_drains(connect, shape, tuning).await?;
        run.show_rate(&format!("trial of Debezium, max.batch.size={batch_rows}"), &drain);
        if drain.rows_per_second > best.0 {
            best = (drain.rows_per_second, tuning);
        }
    }
    run.outcome.notes.push(format!(
        "Debezium ran with {}, the fastest of the settings that were tried. Before the measurement, the same JVM \
         drained the same number of rows four times. The first of these drains is not shown.",
        best.1
    ));
    Ok(best.1)
}

/// Scenario 4: the peak memory of a relay that drains larger rows.
pub async fn memory(run: &mut Run<'_>) -> anyhow::Result<()> {
    for (name, rows, payload_bytes) in [("1 KiB", 1_000_000, 1_024), ("1 MiB", 500, NEARLY_A_MIB)] {
        let shape = Shape { payload_bytes, ..reference(run.size.rows(rows)) };
        let drain = run.relay_drains(&shape, |settings| {
            settings.with_kafka_property("message.max.bytes", RECORD_BYTES_MAX)
        });
        let drain = drain.await?;
        let memory = drain.usage[0].memory_peak_bytes as f64 / MIB;
        run.show(format!("{name}: memory"), Unit::Mebibytes, memory);
        run.note(format!("{name}: rate"), Unit::RowsPerSecond, drain.rows_per_second);
    }
    run.outcome.notes.push(format!(
        "The payload of the rows of 1 MiB is 1 KiB smaller than that, because a topic accepts records of up to 1 MiB \
         by default. For these rows, `\"message.max.bytes\" = {RECORD_BYTES_MAX}` was set."
    ));
    Ok(())
}

/// Scenario 8: one key has all rows, or half of them. They share a lane and a partition and have to stay in order.
pub async fn hot_key(run: &mut Run<'_>) -> anyhow::Result<()> {
    for _ in 0..run.size.runs {
        for (name, hot_share) in [("100%", 1.0), ("50%", 0.5)] {
            let shape = Shape { hot_share, ..reference(run.size.rows(1_000_000)) };
            // Fails if a row is out of order.
            run.relay_rate(name, &shape).await?;
            run.note("out of order", Unit::Rows, 0.0);
        }
    }
    Ok(())
}

/// Scenario 13: many topics, many keys, small and large payloads, each compared with the reference rows.
pub async fn shapes(run: &mut Run<'_>) -> anyhow::Result<()> {
    let base = reference(run.size.rows(1_000_000));
    let shapes = [
        ("reference", base),
        ("1,000 topics", Shape { topics: 1_000, ..base }),
        ("10,000,000 keys", Shape { rows: run.size.rows(2_000_000), keys: 10_000_000, ..base }),
        ("10 B", Shape { payload_bytes: 10, ..base }),
        ("1 KiB", Shape { payload_bytes: 1_024, ..base }),
        ("100 KiB", Shape { rows: run.size.rows(20_000), payload_bytes: 100 << 10, ..base }),
    ];
    for _ in 0..run.size.runs {
        for (name, shape) in &shapes {
            let rate = run.relay_rate(name, shape).await?;
            let bytes = rate * shape.payload_bytes as f64 / MIB;
            run.note(format!("{name}: bytes"), Unit::MebibytesPerSecond, bytes);
        }
    }
    run.outcome.notes.push(format!(
        "Each of the {} rows has one of 10,000,000 possible keys. Each of the 1,000 topics has one partition.",
        number(shapes[2].1.rows as f64)
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::results::Outcome;

    fn tried(rates: &[(Tuning, f64)]) -> Results {
        let mut outcome = Outcome::default();
        for (tuning, rate) in rates {
            outcome.figures.push(format!("{tuning}: rate"), Unit::RowsPerSecond, *rate);
        }
        let mut results = Results::default();
        results.parts.insert("debezium".to_owned(), outcome);
        results
    }

    #[test]
    fn the_relay_is_compared_with_the_fastest_setting_that_was_tried() {
        let fastest = |rates: &[(Tuning, f64)]| fastest_debezium(&tried(rates));
        assert_eq!(fastest_debezium(&Results::default()), BEST);
        assert_eq!(fastest(&[(BEST, 100.0), (TUNINGS[5], 102.0)]), BEST, "noise");
        assert_eq!(fastest(&[(BEST, 100.0), (TUNINGS[5], 110.0), (TUNINGS[6], 105.0)]), TUNINGS[5]);
    }
}
