//! Scenario 8: one key has all rows, or half of them. They share a lane and a partition and have to stay in order.

use super::subjects::{note_rate, reference, relay_drains};
use crate::figures::Unit;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_bench::Shape;
use outbox_bench::place::Place;

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let place = Place::create(world.settings()).await?;
    for _ in 0..size.runs {
        for (name, hot_share) in [("100%", 1.0), ("50%", 0.5)] {
            let shape = Shape { hot_share, ..reference(size.rows(1_000_000)) };
            // Fails if a row is out of order.
            let drain = relay_drains(&place, &shape, |settings| settings).await?;
            note_rate(&mut outcome.figures, name, &drain);
            outcome.figures.push("out of order", Unit::Rows, 0.0);
        }
    }
    place.remove().await?;
    Ok(())
}
