//! Bars 1 to 3, and the first of bar 4: a backlog is drained by a relay that marks, by one that deletes, and by Debezium, in
//! turn.

use super::subjects::{debezium_drains, note, note_rate, reference, relay_drains};
use crate::debezium::Tuning;
use crate::debezium::connect::{Connect, Jvm};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_relay::bench::Shape;
use outbox_relay::bench::place::Place;

/// Settings of Debezium. Each is tried, and the best one is what the relay is compared with.
const TUNINGS: [Tuning; 4] = [
    Tuning { batch_rows: 4_096, linger_ms: 5 },
    Tuning { batch_rows: 8_192, linger_ms: 5 },
    Tuning { batch_rows: 16_384, linger_ms: 5 },
    Tuning { batch_rows: 8_192, linger_ms: 0 },
];

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(2_000_000));
    let place = Place::create(world.settings()).await?;
    let mut connect = world.start_connect(&Jvm { heap: "1g" }).await?;
    let tuning = best_tuning(world, &mut connect, &place, &shape, outcome).await?;
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

/// Warms the JVM up with drains that do not count, and finds the best size of batches.
async fn best_tuning(
    world: &World,
    connect: &mut Connect,
    place: &Place,
    shape: &Shape,
    outcome: &mut Outcome,
) -> anyhow::Result<Tuning> {
    debezium_drains(connect, &world.postgres, place, shape, Tuning::DEFAULT).await?;
    let mut best = (0.0, Tuning::DEFAULT);
    for tuning in TUNINGS {
        let drain = debezium_drains(connect, &world.postgres, place, shape, tuning).await?;
        note_rate(&mut outcome.figures, &format!("trial of Debezium, {tuning}"), &drain);
        if drain.rows_per_second > best.0 {
            best = (drain.rows_per_second, tuning);
        }
    }
    outcome.notes.push(format!(
        "Debezium ran with {}, the best of those tried; before that it had drained the same number of rows five times in the same JVM, \
         of which the first does not appear here.",
        best.1
    ));
    Ok(best.1)
}
