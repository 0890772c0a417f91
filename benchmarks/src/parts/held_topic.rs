//! Scenario 9: rows of a missing topic precede the others. They are held, and the others are published.

use super::subjects::{make_route, note_rate, reference, relay_drains, relay_drains_existing};
use crate::database;
use crate::figures::{Unit, thousands};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use anyhow::ensure;
use outbox_bench::place::{Place, Route};
use outbox_bench::postgres::load;
use outbox_bench::processes::relay::Relay;
use outbox_bench::subject::Subject;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// The name of a topic that is not created.
const HELD: &str = "held";
const HELD_WITHIN: Duration = Duration::from_secs(60);

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(200_000));
    let held = size.rows(1_000_000);
    let place = Place::create(world.settings()).await?;
    let client = database::connect(&world.postgres).await?;
    for _ in 0..size.runs {
        let free = relay_drains(&place, &shape, |settings| settings).await?;
        note_rate(&mut outcome.figures, "free", &free);

        let route = make_route(&place, &shape).await?;
        let table = place.table();
        load::empty(place.database(), &table).await?;
        client.batch_execute(&table.render(&insert_held(held))).await?;
        let seconds = hold_topic(&place, &client, &route).await?;
        outcome.figures.push("until the topic is held", Unit::Seconds, seconds);
        load::fill(place.database(), &table, &shape).await?;
        load::prepare(place.database(), &table).await?;
        let behind = relay_drains_existing(&place, &route, &shape, |settings| settings).await?;
        place.close(route).await?;
        note_rate(&mut outcome.figures, "behind", &behind);
    }
    outcome.notes.push(format!(
        "{} rows of a missing topic have lower ids than the {} other rows. The hold existed before the measured relay \
         started.",
        thousands(held as f64),
        thousands(shape.rows as f64)
    ));
    place.remove().await?;
    Ok(())
}

/// Rows like the others, except for their topic.
fn insert_held(rows: u64) -> String {
    format!(
        "INSERT INTO {{outbox}} (aggregate_type, aggregate_id, event_type, payload)
         SELECT '{HELD}', 'order-' || floor(random() * 10000)::bigint, 'OrderPlaced',
                json_build_object('note', repeat('held ', 46))
         FROM generate_series(1, {rows})"
    )
}

/// Lets a relay find out that the topic is missing. Returns the number of seconds that this took.
async fn hold_topic(place: &Place, client: &Client, route: &Route) -> anyhow::Result<f64> {
    let held = place.table().render("SELECT 1 FROM {hold}");
    let mut relay = Relay::start(place, route).await?;
    let begun = Instant::now();
    while client.query_opt(&held, &[]).await?.is_none() {
        relay.check()?;
        ensure!(begun.elapsed() < HELD_WITHIN, "the missing topic is not held after {HELD_WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    relay.stop().await?;
    Ok(seconds)
}
