//! Scenario 7: a transaction keeps its snapshot open during the whole drain, as pg_dump does. Vacuum cannot remove the
//! row versions that the relay has marked since, so the relay reads past more and more dead index entries.

use super::subjects::{make_route, note_rate, reference, relay_drains, relay_drains_existing};
use crate::figures::Unit;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_bench::place::Place;
use outbox_bench::postgres::writer::Snapshot;

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(3_000_000));
    let place = Place::create(world.settings()).await?;
    for _ in 0..size.runs {
        let free = relay_drains(&place, &shape, |settings| settings).await?;
        note_rate(&mut outcome.figures, "free", &free);

        let route = make_route(&place, &shape).await?;
        place.fill(&shape).await?;
        let snapshot = Snapshot::take(place.database()).await?;
        let held = relay_drains_existing(&place, &route, &shape, |settings| settings).await?;
        snapshot.end().await?;
        place.close(route).await?;
        note_rate(&mut outcome.figures, "held", &held);
        let thirds = [
            ("held: first third", held.first_third_rows_per_second),
            ("held: last third", held.last_third_rows_per_second),
        ];
        for (name, rate) in thirds {
            outcome.figures.push(name, Unit::RowsPerSecond, rate);
        }
    }
    place.remove().await?;
    Ok(())
}
