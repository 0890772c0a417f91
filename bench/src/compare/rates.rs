//! Scenarios 5 and 6: rows that are written at a steady rate or at full speed, with the relay, with Debezium and without
//! either, and the cost of idling.

use super::debezium::{Connect, Tuning};
use super::results::Unit;
use super::run::{MIB, PARTITIONS, Run, assert_exact, reference};
use crate::BenchError;
use crate::flow::{self, Flow, Idle};
use crate::place::Route;
use crate::relay::{Subject, with_relay};
use crate::server::Activity;
use crate::steady::{self, Pace, Steady};
use crate::usage::Usage;
use crate::writers::Work;
use anyhow::Context;
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

const FULL_SPEED_WRITERS: u64 = 8;
const ROWS_PER_TRANSACTION: u64 = 50;
const FULL_SPEED_TIME: Duration = Duration::from_secs(60);

/// Scenario 5.
pub async fn steady(run: &mut Run<'_>) -> anyhow::Result<()> {
    let size = run.size;
    let mut connect = run.world.start_connect(Tuning::DEFAULT).await?;
    let warm_up = Pace::of(1_000, Duration::ZERO, size.time(WARM_UP_OF_JVM));
    of_debezium(run, &mut connect, &warm_up, None).await?;
    for number in 0..size.runs {
        let silence = Pace::of(1, Duration::ZERO, size.time(TIME));
        let (_, steady) = of_relay(run, &silence, None).await?;
        note_steady(run, SILENCE, RELAY, &steady)?;
        for (position, (name, rows_per_second, rows_per_transaction)) in RATES.into_iter().enumerate() {
            let (warm_up, time) = (size.time(WARM_UP), size.time(TIME));
            let pace = Pace { rows_per_second, rows_per_transaction, warm_up, time };
            let idle = (position == 0).then(|| size.time(TIME));
            // Which of the two is measured first alternates between runs.
            let relay_first = number % 2 == 0;
            for relay in [relay_first, !relay_first] {
                let (subject, (idle, steady)) = if relay {
                    (RELAY, of_relay(run, &pace, idle).await?)
                } else {
                    (DEBEZIUM, of_debezium(run, &mut connect, &pace, idle).await?)
                };
                note_idle(run, subject, idle.as_ref());
                note_steady(run, name, subject, &steady)?;
            }
            let alone = Pace { time: size.time(TIME_ALONE), ..pace };
            let used = steady::alone(run.place, &reference(0), &alone).await?;
            note_usage(run, &format!("{name}, {WRITERS}"), &used.usage, &used.activity);
        }
    }
    let sizes = RATES.map(|(name, _, rows)| format!("{rows} at {name}"));
    run.outcome.notes.push(format!("16 connections. Rows per transaction: {}.", sizes.join(", ")));
    connect.stop().await
}

async fn of_relay(
    run: &Run<'_>,
    pace: &Pace,
    idle: Option<Duration>,
) -> anyhow::Result<(Option<Idle>, Steady)> {
    let shape = reference(0);
    run.place.fill(&shape).await?;
    let measured = with_relay(run.place, &shape, PARTITIONS, async |route, relay| {
        idle_and_steady(route, relay, pace, idle).await
    });
    Ok(measured.await?)
}

async fn of_debezium(
    run: &Run<'_>,
    connect: &mut Connect,
    pace: &Pace,
    idle: Option<Duration>,
) -> anyhow::Result<(Option<Idle>, Steady)> {
    let shape = reference(0);
    run.place.fill(&shape).await?;
    let measured = run.with_debezium(connect, &shape, TUNING, async |route, debezium| {
        Ok(idle_and_steady(route, debezium, pace, idle).await?)
    });
    measured.await
}

/// Measures a subject, first for some time while nothing is written, and then at this pace.
async fn idle_and_steady(
    route: &Route<'_>,
    subject: &mut impl Subject,
    pace: &Pace,
    idle: Option<Duration>,
) -> Result<(Option<Idle>, Steady), BenchError> {
    let idle = match idle {
        Some(time) => Some(flow::measure_idle(route.place, subject, time).await?),
        None => None,
    };
    Ok((idle, steady::measure(route, subject, pace).await?))
}

/// The CPU time of the subject and of PostgreSQL while nothing is written, in percent of one core.
fn note_idle(run: &mut Run<'_>, subject: &str, idle: Option<&Idle>) {
    let usage = idle.map_or(&[][..], |idle| &idle.usage);
    // The subject comes first. PostgreSQL follows if its processes can be seen.
    for (party, usage) in ["its CPU", "CPU of PostgreSQL"].into_iter().zip(usage) {
        run.show(format!("idle, {subject}: {party}"), Unit::CorePercent, usage.cores * 100.0);
    }
}

/// Fails if a row was lost, duplicated or out of order.
fn note_steady(run: &mut Run<'_>, rate: &str, subject: &str, steady: &Steady) -> anyhow::Result<()> {
    let name = format!("{rate}, {subject}");
    assert_exact(&steady.verdict).with_context(|| name.clone())?;
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
        run.note(format!("{name}: {quantile}"), Unit::Milliseconds, ms);
    }
    // The measuring program comes last.
    note_usage(run, &name, &steady.usage[..steady.usage.len() - 1], &steady.activity);
    let memory = steady.usage[0].memory_peak_bytes as f64 / MIB;
    run.note(format!("{name}: memory"), Unit::Mebibytes, memory);
    Ok(())
}

fn note_usage(run: &mut Run<'_>, name: &str, usage: &[Usage], activity: &Activity) {
    for usage in usage {
        let party = match usage.party.as_str() {
            "postgres" => "CPU of PostgreSQL",
            "kafka" => "CPU of Kafka",
            _ => "its CPU",
        };
        if let Some(cost) = usage.cpu_us_per_row {
            run.show(format!("{name}: {party}"), Unit::MicrosecondsPerRow, cost);
        }
    }
    run.note(format!("{name}: WAL"), Unit::BytesPerRow, activity.wal_bytes_per_row);
    let transactions = activity.transactions_per_second;
    run.note(format!("{name}: transactions"), Unit::TransactionsPerSecond, transactions);
}

/// Scenario 6: writers insert as fast as they can: alone, with the relay, and with Debezium.
pub async fn full_speed(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (writers, rows_per_transaction) = (FULL_SPEED_WRITERS, ROWS_PER_TRANSACTION);
    let time = run.size.time(FULL_SPEED_TIME);
    let work = Work { writers, rows_per_transaction, rows_per_second: None, time };
    let shape = reference(0);
    let tuning = run.world.fastest_debezium()?;
    let mut connect = run.world.start_connect(tuning).await?;
    // The first run only warms up the JVM.
    full_speed_debezium(run, &mut connect, &work, tuning).await?;
    for _ in 0..run.size.runs {
        let alone = flow::alone(run.place, &shape, &work).await?;
        run.show("alone: written", Unit::RowsPerSecond, alone);
        run.place.empty().await?;
        let flow = with_relay(run.place, &shape, PARTITIONS, async |route, relay| {
            flow::measure(route, relay, &work).await
        });
        note_flow(run, RELAY, &flow.await?)?;
        let flow = full_speed_debezium(run, &mut connect, &work, tuning).await?;
        note_flow(run, DEBEZIUM, &flow)?;
    }
    let note = format!("{writers} connections with {rows_per_transaction} rows per transaction.");
    run.outcome.notes.push(note);
    connect.stop().await
}

async fn full_speed_debezium(
    run: &Run<'_>,
    connect: &mut Connect,
    work: &Work,
    tuning: Tuning,
) -> anyhow::Result<Flow> {
    let shape = reference(0);
    run.place.empty().await?;
    let flow = run.with_debezium(connect, &shape, tuning, async |route, debezium| {
        Ok(flow::measure(route, debezium, work).await?)
    });
    flow.await
}

/// Fails if a row was lost, duplicated or out of order.
fn note_flow(run: &mut Run<'_>, name: &str, flow: &Flow) -> anyhow::Result<()> {
    assert_exact(&flow.verdict).with_context(|| name.to_owned())?;
    run.show(format!("{name}: written"), Unit::RowsPerSecond, flow.written_rows_per_second);
    run.show(format!("{name}: delivered"), Unit::RowsPerSecond, flow.delivered_rows_per_second);
    run.note(format!("{name}: waiting in the middle"), Unit::Rows, flow.lag_rows_half as f64);
    run.note(format!("{name}: waiting at the end"), Unit::Rows, flow.lag_rows_end as f64);
    run.note(format!("{name}: until all had arrived"), Unit::Seconds, flow.catch_up_seconds);
    Ok(())
}
