//! Other settings of Debezium's JVM and connector, each in a separate JVM, to find the fastest.

use super::Part;
use super::subjects::{debezium_drains, note, reference};
use crate::debezium::Tuning;
use crate::figures::Of;
use crate::results::{Outcome, Results};
use crate::size::Size;
use crate::world::World;
use outbox_bench::place::Place;

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

/// The settings that the relay is compared with: the fastest ones that were tried, or the default if none were.
pub fn fastest(results: &Results) -> Tuning {
    let rate = |tuning: Tuning| {
        let figures = &results.parts.get(Part::Debezium.name())?.figures;
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

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(500_000));
    let place = Place::create(world.settings()).await?;
    for tuning in TUNINGS {
        let mut connect = world.start_connect(tuning).await?;
        for drained in 0..WARM_UPS + size.runs {
            let drain = debezium_drains(&mut connect, &world.postgres, &place, &shape, tuning).await?;
            if drained >= WARM_UPS {
                note(&mut outcome.figures, &tuning.to_string(), &drain);
            }
        }
        connect.stop().await?;
    }
    outcome.notes.push(format!("Before the measurement, each JVM drained the rows {WARM_UPS} times."));
    place.remove().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Unit;

    fn tried(rates: &[(Tuning, f64)]) -> Results {
        let mut outcome = Outcome::default();
        for (tuning, rate) in rates {
            outcome.figures.push(format!("{tuning}: rate"), Unit::RowsPerSecond, *rate);
        }
        let mut results = Results::default();
        results.parts.insert(Part::Debezium.name().to_owned(), outcome);
        results
    }

    #[test]
    fn the_relay_is_compared_with_the_fastest_setting_that_was_tried() {
        assert_eq!(fastest(&Results::default()), BEST);
        assert_eq!(fastest(&tried(&[(BEST, 100.0), (TUNINGS[5], 102.0)])), BEST, "noise");
        assert_eq!(fastest(&tried(&[(BEST, 100.0), (TUNINGS[5], 110.0), (TUNINGS[6], 105.0)])), TUNINGS[5]);
    }
}
