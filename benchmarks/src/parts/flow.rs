//! Scenario 6: writers insert as fast as they can: alone, with the relay, and with Debezium.

use super::subjects::{make_route, reference};
use crate::debezium::connect::Connect;
use crate::debezium::{Debezium, Tuning};
use crate::figures::{Figures, Unit};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use anyhow::ensure;
use outbox_bench::measurements::flow::{self, Flow};
use outbox_bench::place::Place;
use outbox_bench::postgres::load;
use outbox_bench::processes::relay::Relay;
use outbox_bench::writers::Work;
use std::time::Duration;

const WRITERS: u64 = 8;
const ROWS_PER_TRANSACTION: u64 = 50;
const TIME: Duration = Duration::from_secs(60);

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let work = Work {
        writers: WRITERS,
        rows_per_transaction: ROWS_PER_TRANSACTION,
        rows_per_second: None,
        time: size.time(TIME),
    };
    let place = Place::create(world.settings()).await?;
    let tuning = world.fastest_debezium()?;
    let mut connect = world.start_connect(tuning).await?;
    // The first run only warms up the JVM.
    with_debezium(&mut connect, world, &place, &work, tuning).await?;
    for _ in 0..size.runs {
        let alone = flow::alone(&place, &reference(0), &work).await?;
        eprintln!("  alone: {}", Unit::RowsPerSecond.show(alone));
        outcome.figures.push("alone: written", Unit::RowsPerSecond, alone);
        note(&mut outcome.figures, "relay", &with_relay(&place, &work).await?)?;
        note(
            &mut outcome.figures,
            "Debezium",
            &with_debezium(&mut connect, world, &place, &work, tuning).await?,
        )?;
    }
    outcome.notes.push(format!("{WRITERS} connections with {ROWS_PER_TRANSACTION} rows per transaction."));
    connect.stop().await?;
    place.remove().await?;
    Ok(())
}

async fn with_relay(place: &Place, work: &Work) -> anyhow::Result<Flow> {
    let shape = reference(0);
    let route = make_route(place, &shape).await?;
    load::empty(place.database(), &place.table()).await?;
    let mut relay = Relay::start(place, &route).await?;
    let flow = flow::measure(place, &route, &mut relay, &shape, work).await?;
    relay.stop().await?;
    place.close(route).await?;
    Ok(flow)
}

async fn with_debezium(
    connect: &mut Connect,
    world: &World,
    place: &Place,
    work: &Work,
    tuning: Tuning,
) -> anyhow::Result<Flow> {
    let shape = reference(0);
    let route = make_route(place, &shape).await?;
    load::empty(place.database(), &place.table()).await?;
    let mut debezium = Debezium::attach(connect, &world.postgres, place, &route, tuning).await?;
    let flow = flow::measure(place, &route, &mut debezium, &shape, work).await?;
    debezium.detach().await?;
    place.close(route).await?;
    Ok(flow)
}

/// Fails if a row was lost, duplicated or out of order.
fn note(figures: &mut Figures, name: &str, flow: &Flow) -> anyhow::Result<()> {
    let verdict = &flow.verdict;
    ensure!(verdict.is_exact(), "{name}: the records differ from the committed rows: {verdict:?}");
    let rates = [("written", flow.written_rows_per_second), ("delivered", flow.delivered_rows_per_second)];
    for (what, rate) in rates {
        eprintln!("  {name}: {what} {}", Unit::RowsPerSecond.show(rate));
        figures.push(format!("{name}: {what}"), Unit::RowsPerSecond, rate);
    }
    figures.push(format!("{name}: waiting in the middle"), Unit::Rows, flow.lag_rows_half as f64);
    figures.push(format!("{name}: waiting at the end"), Unit::Rows, flow.lag_rows_end as f64);
    figures.push(format!("{name}: until all had arrived"), Unit::Seconds, flow.catch_up_seconds);
    Ok(())
}
