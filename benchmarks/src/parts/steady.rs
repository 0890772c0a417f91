//! Scenario 5: rows that are written at a steady rate, with the relay, with Debezium and without either, and the cost of
//! idling.

use super::subjects::{make_route, reference};
use crate::debezium::connect::Connect;
use crate::debezium::{Debezium, Tuning};
use crate::figures::{Figures, Unit};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use anyhow::ensure;
use outbox_bench::measurements::idle;
use outbox_bench::measurements::steady::{self, Pace, Steady};
use outbox_bench::place::Place;
use outbox_bench::postgres::counters::Activity;
use outbox_bench::postgres::load;
use outbox_bench::processes::relay::Relay;
use outbox_bench::processes::usage::Usage;
use outbox_bench::subject::Subject;
use std::time::Duration;

/// The rates: their name, rows per second, and rows per transaction.
pub const RATES: [(&str, u64, u64); 5] = [
    ("10 rows/s", 10, 1),
    ("100 rows/s", 100, 1),
    ("1,000 rows/s", 1_000, 5),
    ("5,000 rows/s", 5_000, 5),
    ("20,000 rows/s", 20_000, 20),
];
pub const RELAY: &str = "relay";
pub const DEBEZIUM: &str = "Debezium";
pub const WRITERS: &str = "writers alone";

/// One row per second: each row comes after a silence.
const SILENCE: &str = "after a silence";
const WARM_UP: Duration = Duration::from_secs(5);
/// Gives the JVM time to compile the hot code.
const WARM_UP_OF_JVM: Duration = Duration::from_secs(60);
const TIME: Duration = Duration::from_secs(20);
const TIME_ALONE: Duration = Duration::from_secs(10);
const TUNING: Tuning = Tuning { linger_ms: 0, ..Tuning::DEFAULT };

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let place = Place::create(world.settings()).await?;
    let mut connect = world.start_connect(Tuning::DEFAULT).await?;
    let warm_up = Pace::of(1_000, Duration::ZERO, size.time(WARM_UP_OF_JVM));
    of_debezium(&mut connect, world, &place, &warm_up, None).await?;
    for run in 0..size.runs {
        let silence = Pace::of(1, Duration::ZERO, size.time(TIME));
        note(&mut outcome.figures, SILENCE, RELAY, &of_relay(&place, &silence, None).await?)?;
        for (position, (name, rows_per_second, rows_per_transaction)) in RATES.into_iter().enumerate() {
            let (warm_up, time) = (size.time(WARM_UP), size.time(TIME));
            let pace = Pace { rows_per_second, rows_per_transaction, warm_up, time };
            let figures = &mut outcome.figures;
            let idle = (position == 0).then(|| Idle { time: size.time(TIME), figures: Figures::default() });
            with_both(
                &mut connect,
                world,
                &place,
                Turn { name, pace, relay_first: run % 2 == 0, idle },
                figures,
            )
            .await?;
            let alone = Pace { time: size.time(TIME_ALONE), ..pace };
            let used = steady::alone(&place, &reference(0), &alone).await?;
            note_usage(figures, &format!("{name}, {WRITERS}"), &used.usage, &used.activity);
        }
    }
    outcome.notes.push(notes());
    connect.stop().await?;
    place.remove().await?;
    Ok(())
}

fn notes() -> String {
    let sizes = RATES.map(|(name, _, rows)| format!("{rows} at {name}"));
    format!("16 connections. Rows per transaction: {}.", sizes.join(", "))
}

/// The measurement of one rate.
struct Turn {
    name: &'static str,
    pace: Pace,
    /// Which of the two is measured first alternates between runs.
    relay_first: bool,
    /// Whether both are also measured while nothing is written.
    idle: Option<Idle>,
}

struct Idle {
    time: Duration,
    figures: Figures,
}

async fn with_both(
    connect: &mut Connect,
    world: &World,
    place: &Place,
    mut turn: Turn,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    for relay in [turn.relay_first, !turn.relay_first] {
        let idle = turn.idle.as_mut();
        let (subject, steady) = if relay {
            (RELAY, of_relay(place, &turn.pace, idle).await?)
        } else {
            (DEBEZIUM, of_debezium(connect, world, place, &turn.pace, idle).await?)
        };
        note(figures, turn.name, subject, &steady)?;
    }
    if let Some(idle) = turn.idle {
        figures.append(idle.figures);
    }
    Ok(())
}

async fn of_relay(place: &Place, pace: &Pace, idle: Option<&mut Idle>) -> anyhow::Result<Steady> {
    let shape = reference(0);
    let route = make_route(place, &shape).await?;
    load::empty(place.database(), &place.table()).await?;
    load::prepare(place.database(), &place.table()).await?;
    let mut relay = Relay::start(place, &route).await?;
    if let Some(idle) = idle {
        measure_idle(place, &mut relay, idle, RELAY).await?;
    }
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
    idle: Option<&mut Idle>,
) -> anyhow::Result<Steady> {
    let shape = reference(0);
    let route = make_route(place, &shape).await?;
    load::empty(place.database(), &place.table()).await?;
    load::prepare(place.database(), &place.table()).await?;
    let mut debezium = Debezium::attach(connect, &world.postgres, place, &route, TUNING).await?;
    if let Some(idle) = idle {
        measure_idle(place, &mut debezium, idle, DEBEZIUM).await?;
    }
    let steady = steady::measure(place, &route, &mut debezium, &shape, pace).await?;
    debezium.detach().await?;
    place.close(route).await?;
    Ok(steady)
}

/// The CPU time of the subject and of PostgreSQL while nothing is written, in percent of one core.
async fn measure_idle(
    place: &Place,
    subject: &mut impl Subject,
    idle: &mut Idle,
    name: &str,
) -> anyhow::Result<()> {
    let measured = idle::measure(place, subject, idle.time).await?;
    // The subject comes first. PostgreSQL follows if its processes can be seen.
    for (party, usage) in ["its CPU", "CPU of PostgreSQL"].into_iter().zip(&measured.usage) {
        let figure = format!("idle, {name}: {party}");
        eprintln!("  {figure} {}", Unit::CorePercent.show(usage.cores * 100.0));
        idle.figures.push(figure, Unit::CorePercent, usage.cores * 100.0);
    }
    Ok(())
}

/// Fails if a row was lost, duplicated or out of order.
fn note(figures: &mut Figures, rate: &str, subject: &str, steady: &Steady) -> anyhow::Result<()> {
    let (verdict, name) = (&steady.verdict, format!("{rate}, {subject}"));
    ensure!(verdict.is_exact(), "{name}: the records differ from the committed rows: {verdict:?}");
    let latency = &steady.latency;
    eprintln!("  {name}: p50 {:.1} ms, p99 {:.1} ms", latency.p50_ms, latency.p99_ms);
    let quantiles = [
        ("p50", latency.p50_ms),
        ("p90", latency.p90_ms),
        ("p99", latency.p99_ms),
        ("p99.9", latency.p999_ms),
        ("writers late, p99", steady.writer_late.p99_ms),
        ("commit, p99", steady.commit.p99_ms),
    ];
    for (quantile, ms) in quantiles {
        figures.push(format!("{name}: {quantile}"), Unit::Milliseconds, ms);
    }
    // The measuring program comes last.
    note_usage(figures, &name, &steady.usage[..steady.usage.len() - 1], &steady.activity);
    let memory = steady.usage[0].memory_peak_bytes as f64 / super::subjects::MIB;
    figures.push(format!("{name}: memory"), Unit::Mebibytes, memory);
    Ok(())
}

fn note_usage(figures: &mut Figures, name: &str, usage: &[Usage], activity: &Activity) {
    for usage in usage {
        let party = match usage.party.as_str() {
            "postgres" => "CPU of PostgreSQL",
            "kafka" => "CPU of Kafka",
            _ => "its CPU",
        };
        if let Some(cost) = usage.cpu_us_per_row {
            eprintln!("  {name}: {party} {}", Unit::MicrosecondsPerRow.show(cost));
            figures.push(format!("{name}: {party}"), Unit::MicrosecondsPerRow, cost);
        }
    }
    figures.push(format!("{name}: WAL"), Unit::BytesPerRow, activity.wal_bytes_per_row);
    let transactions = activity.transactions_per_second;
    figures.push(format!("{name}: transactions"), Unit::TransactionsPerSecond, transactions);
}
