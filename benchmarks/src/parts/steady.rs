//! Scenario 5: the latency of rows that are written at a steady rate, and the cost of an idle relay.

use super::subjects::{make_route, reference};
use crate::debezium::connect::Connect;
use crate::debezium::{Debezium, Tuning};
use crate::figures::{Figures, Unit};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use anyhow::ensure;
use outbox_bench::idle;
use outbox_bench::place::Place;
use outbox_bench::postgres::load;
use outbox_bench::relay::Relay;
use outbox_bench::steady::{self, Pace, Steady};
use outbox_bench::subject::Subject;
use std::time::Duration;

const PACES: [(&str, u64); 3] = [("100 rows/s", 100), ("1,000 rows/s", 1_000), ("5,000 rows/s", 5_000)];
/// The rate at which Debezium is measured, too.
const COMPARED: u64 = 1_000;
const WARM_UP: Duration = Duration::from_secs(5);
/// Gives the JVM time to compile the hot code.
const WARM_UP_OF_JVM: Duration = Duration::from_secs(60);
const TIME: Duration = Duration::from_secs(40);
const IDLE: Duration = Duration::from_secs(30);

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let place = Place::create(world.settings()).await?;
    let mut connect = world.start_connect(Tuning::DEFAULT).await?;
    for run in 0..size.runs {
        idle_relay(&place, outcome, size).await?;
        for (name, rows_per_second) in PACES {
            let pace = Pace { rows_per_second, warm_up: size.time(WARM_UP), time: size.time(TIME) };
            let steady = of_relay(&place, &pace).await?;
            note(&mut outcome.figures, name, &steady)?;
        }
        let warm_up = size.time(if run == 0 { WARM_UP_OF_JVM } else { WARM_UP });
        let pace = Pace { rows_per_second: COMPARED, warm_up, time: size.time(TIME) };
        let steady = of_debezium(&mut connect, world, &place, &pace, outcome, size).await?;
        note(&mut outcome.figures, "Debezium", &steady)?;
    }
    connect.stop().await?;
    place.remove().await?;
    Ok(())
}

/// A relay with an empty outbox, on an otherwise idle server.
async fn idle_relay(place: &Place, outcome: &mut Outcome, size: &Size) -> anyhow::Result<()> {
    let route = make_route(place, &reference(0)).await?;
    load::empty(place.database(), &place.table()).await?;
    load::prepare(place.database(), &place.table()).await?;
    let mut relay = Relay::start(place, &route).await?;
    let names = ["idle: CPU of the relay", "idle: CPU of PostgreSQL"];
    idle(place, &mut relay, size, &mut outcome.figures, names).await?;
    relay.stop().await?;
    place.close(route).await?;
    Ok(())
}

async fn of_relay(place: &Place, pace: &Pace) -> anyhow::Result<Steady> {
    let shape = reference(0);
    let route = make_route(place, &shape).await?;
    load::empty(place.database(), &place.table()).await?;
    let mut relay = Relay::start(place, &route).await?;
    let steady = steady::measure(place, &route, &mut relay, &shape, pace).await?;
    relay.stop().await?;
    place.close(route).await?;
    Ok(steady)
}

async fn of_debezium(
    connect: &mut Connect,
    world: &World,
    place: &Place,
    pace: &Pace,
    outcome: &mut Outcome,
    size: &Size,
) -> anyhow::Result<Steady> {
    let shape = reference(0);
    let route = make_route(place, &shape).await?;
    load::empty(place.database(), &place.table()).await?;
    let tuning = Tuning { linger_ms: 0, ..Tuning::DEFAULT };
    let mut debezium = Debezium::attach(connect, &world.postgres, place, &route, tuning).await?;
    let steady = steady::measure(place, &route, &mut debezium, &shape, pace).await?;
    let names = ["Debezium idle: its CPU", "Debezium idle: CPU of PostgreSQL"];
    idle(place, &mut debezium, size, &mut outcome.figures, names).await?;
    debezium.detach().await?;
    place.close(route).await?;
    Ok(steady)
}

/// The CPU time of the subject and of PostgreSQL while nothing is written, in percent of one core.
async fn idle(
    place: &Place,
    subject: &mut impl Subject,
    size: &Size,
    figures: &mut Figures,
    names: [&str; 2],
) -> anyhow::Result<()> {
    let idle = idle::measure(place, subject, size.time(IDLE)).await?;
    // The subject comes first. PostgreSQL follows if its processes can be seen.
    for (name, usage) in names.into_iter().zip(&idle.usage) {
        eprintln!("  {name} {}", Unit::CorePercent.show(usage.cores * 100.0));
        figures.push(name, Unit::CorePercent, usage.cores * 100.0);
    }
    Ok(())
}

/// Fails if a row was lost, duplicated or out of order.
fn note(figures: &mut Figures, name: &str, steady: &Steady) -> anyhow::Result<()> {
    let verdict = &steady.verdict;
    ensure!(verdict.is_exact(), "{name}: the records differ from the committed rows: {verdict:?}");
    let latency = &steady.latency;
    eprintln!("  {name}: p50 {:.1} ms, p99 {:.1} ms", latency.p50_ms, latency.p99_ms);
    for (quantile, ms) in [("p50", latency.p50_ms), ("p99", latency.p99_ms), ("p99.9", latency.p999_ms)] {
        figures.push(format!("{name}: {quantile}"), Unit::Milliseconds, ms);
    }
    figures.push(format!("{name}: writers late, p99"), Unit::Milliseconds, steady.writer_late.p99_ms);
    figures.push(format!("{name}: commit, p99"), Unit::Milliseconds, steady.commit.p99_ms);
    figures.push(format!("{name}: CPU"), Unit::CorePercent, steady.usage[0].cores * 100.0);
    Ok(())
}
