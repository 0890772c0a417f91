//! Scenarios 1 to 3 and the first measurement of scenario 4: a relay that marks, a relay that deletes, and Debezium
//! drain a backlog in turn.

use super::subjects::{debezium_drains, note, note_rate, reference, relay_drains};
use crate::debezium::Tuning;
use crate::debezium::connect::Connect;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_bench::Shape;
use outbox_bench::place::Place;

/// The values of Debezium's `max.batch.size` to try. The relay is compared with the best one.
const BATCHES: [u32; 3] = [4_096, 8_192, 16_384];

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(2_000_000));
    let place = Place::create(world.settings()).await?;
    let fastest = world.fastest_debezium()?;
    let mut connect = world.start_connect(fastest).await?;
    let tuning = best_batches(world, &mut connect, &place, &shape, fastest, outcome).await?;
    for _ in 0..size.runs {
        for on_sent in ["mark", "delete"] {
            let drain =
                relay_drains(&place, &shape, |settings| settings.with("outbox", "on_sent", on_sent)).await?;
            note(&mut outcome.figures, on_sent, &drain);
        }
        let drain = debezium_drains(&mut connect, &world.postgres, &place, &shape, tuning).await?;
        note(&mut outcome.figures, "Debezium", &drain);
    }
    connect.stop().await?;
    place.remove().await?;
    Ok(())
}

/// Warms up the JVM with drains that do not count, and finds the best batch size.
async fn best_batches(
    world: &World,
    connect: &mut Connect,
    place: &Place,
    shape: &Shape,
    fastest: Tuning,
    outcome: &mut Outcome,
) -> anyhow::Result<Tuning> {
    debezium_drains(connect, &world.postgres, place, shape, fastest).await?;
    let mut best = (0.0, fastest);
    for batch_rows in BATCHES {
        let tuning = Tuning { batch_rows, ..fastest };
        let drain = debezium_drains(connect, &world.postgres, place, shape, tuning).await?;
        note_rate(&mut outcome.figures, &format!("trial of Debezium, max.batch.size={batch_rows}"), &drain);
        if drain.rows_per_second > best.0 {
            best = (drain.rows_per_second, tuning);
        }
    }
    outcome.notes.push(format!(
        "Debezium ran with {}, the fastest of the settings that were tried. Before the measurement, the same JVM \
         drained the same number of rows four times. The first of these drains is not shown.",
        best.1
    ));
    Ok(best.1)
}
