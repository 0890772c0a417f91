//! Bars 1 to 3, and the first of bar 4: a backlog is drained by a relay that marks, by one that deletes, and by Debezium, in
//! turn.

use super::subjects::{debezium_drains, note, reference, relay_drains};
use crate::debezium::Tuning;
use crate::debezium::connect::{Connect, Jvm};
use crate::figures::{Of, Unit};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_relay::bench::Shape;
use outbox_relay::bench::place::Place;

/// `max.batch.size` of Debezium. Each is tried, and the best one is what the relay is compared with.
const BATCHES: [u32; 3] = [4_096, 8_192, 16_384];

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(2_000_000));
    let place = Place::create(world.settings()).await?;
    let mut connect = world.start_connect(&Jvm { heap: "1g" }).await?;
    let tuning = best_tuning(world, &mut connect, &place, &shape, outcome).await?;
    for run in 1..=size.runs {
        for on_sent in ["mark", "delete"] {
            let drain = relay_drains(&place, &shape, |settings| settings.with("outbox", "on_sent", on_sent)).await?;
            eprintln!("drain {run}: {on_sent}: {}", Unit::RowsPerSecond.show(drain.rows_per_second));
            note(&mut outcome.figures, on_sent, &drain);
        }
        let drain = debezium_drains(&mut connect, &world.postgres, &place, &shape, tuning).await?;
        eprintln!("drain {run}: Debezium: {}", Unit::RowsPerSecond.show(drain.rows_per_second));
        note(&mut outcome.figures, "Debezium", &drain);
    }
    connect.stop().await?;
    place.remove().await?;
    Ok(())
}

/// Warms the JVM up with drains that do not count, and finds the best size of batches.
async fn best_tuning(
    world: &World,
    connect: &mut Connect,
    place: &Place,
    shape: &Shape,
    outcome: &mut Outcome,
) -> anyhow::Result<Tuning> {
    debezium_drains(connect, &world.postgres, place, shape, Tuning { batch_rows: BATCHES[0] }).await?;
    let mut best = (0.0, Tuning { batch_rows: BATCHES[0] });
    for batch_rows in BATCHES {
        let tuning = Tuning { batch_rows };
        let drain = debezium_drains(connect, &world.postgres, place, shape, tuning).await?;
        let name = format!("trial of Debezium, max.batch.size {batch_rows}: rate");
        eprintln!("drain: {name}: {}", Unit::RowsPerSecond.show(drain.rows_per_second));
        outcome.figures.push(&name, Unit::RowsPerSecond, drain.rows_per_second);
        let rate = outcome.figures.pick(&name, Of::Best).unwrap_or(0.0);
        if rate > best.0 {
            best = (rate, tuning);
        }
    }
    outcome.notes.push(format!(
        "Debezium ran with max.batch.size={}, the best of those tried, after four drains of the same size in the same JVM, of \
         which the first does not appear here.",
        best.1.batch_rows
    ));
    Ok(best.1)
}
