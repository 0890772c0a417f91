//! Scenario 15: one hour at 1,000 rows/s with the reaper and autovacuum, and how sizes, memory and latency develop.

use super::results::{Series, Unit};
use super::run::{MIB, Run, assert_exact, reference};
use crate::place::Place;
use crate::relay::{Relay, Subject};
use crate::steady::{self, Latency, Pace, Steady};
use crate::usage::Party;
use deadpool_postgres::Object;
use std::time::{Duration, Instant};

pub const P50: &str = "p50";
pub const P99: &str = "p99";
pub const TABLE: &str = "table";
pub const INDEXES: &str = "indexes";
pub const DEAD: &str = "dead rows";
pub const MEMORY: &str = "memory of the relay";

const ROWS_PER_SECOND: u64 = 1_000;
const ROWS_PER_TRANSACTION: u64 = 5;
const WARM_UP: Duration = Duration::from_secs(5);
const TIME: Duration = Duration::from_secs(3_600);
const QUICK_TIME: Duration = Duration::from_secs(120);
/// For most of the time, there are rows that are old enough for the reaper, so that the sizes reach a steady state.
const TIMES_RETENTION: u32 = 6;
const SAMPLE_INTERVAL: Duration = Duration::from_secs(30);
/// The part of the hour that is compared at its beginning and at its end.
const MINUTES_COMPARED: usize = 10;

pub async fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let time = if run.size.is_scaled() { QUICK_TIME } else { TIME };
    let retention = (time / TIMES_RETENTION).as_secs();
    let (place, shape) = (run.place, reference(0));
    let route = run.route(&shape).await?;
    place.fill(&shape).await?;
    let pace = Pace {
        rows_per_second: ROWS_PER_SECOND,
        rows_per_transaction: ROWS_PER_TRANSACTION,
        warm_up: WARM_UP,
        time,
    };
    let mut relay =
        Relay::start_with(&route, |settings| settings.with("reaper", "retention", format!("{retention}s")))
            .await?;
    let mut samples = Samples::new(place, relay.party()).await?;
    let steady = tokio::select! {
        steady = steady::measure(&route, &mut relay, &pace) => steady?,
        error = samples.take() => return Err(error),
    };
    relay.stop().await?;
    assert_exact(&steady.verdict)?;
    note(run, &steady, samples);
    run.outcome.notes.push(format!(
        "16 connections, {ROWS_PER_TRANSACTION} rows per transaction, `retention = \"{}m\"`, autovacuum with the defaults of \
         PostgreSQL. The relay was the only one.",
        retention / 60
    ));
    Ok(route.close().await?)
}

/// What is read every half minute.
struct Samples {
    client: Object,
    sizes: String,
    relay: Party,
    begun: Instant,
    table: Series,
    indexes: Series,
    dead: Series,
    memory: Series,
    vacuums: f64,
}

impl Samples {
    async fn new(place: &Place, relay: Party) -> anyhow::Result<Samples> {
        let sizes = "SELECT pg_table_size('{outbox}')::float8, pg_indexes_size('{outbox}')::float8, \
                     pg_stat_get_dead_tuples('{outbox}'::regclass)::float8, \
                     pg_stat_get_autovacuum_count('{outbox}'::regclass)::float8";
        Ok(Samples {
            client: place.database.get().await?,
            sizes: place.table().render(sizes),
            relay,
            begun: Instant::now(),
            table: Series::new(),
            indexes: Series::new(),
            dead: Series::new(),
            memory: Series::new(),
            vacuums: 0.0,
        })
    }

    /// Takes samples until it fails.
    async fn take(&mut self) -> anyhow::Error {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        loop {
            interval.tick().await;
            if let Err(error) = self.take_one().await {
                return error;
            }
        }
    }

    async fn take_one(&mut self) -> anyhow::Result<()> {
        let row = self.client.query_one(&self.sizes, &[]).await?;
        let minute = self.begun.elapsed().as_secs_f64() / 60.0;
        self.table.push((minute, row.get::<_, f64>(0) / MIB));
        self.indexes.push((minute, row.get::<_, f64>(1) / MIB));
        self.dead.push((minute, row.get(2)));
        self.vacuums = row.get(3);
        self.memory.push((minute, self.relay.memory() as f64 / MIB));
        Ok(())
    }
}

fn note(run: &mut Run<'_>, steady: &Steady, samples: Samples) {
    let latency = &steady.latency;
    let minutes = &steady.latency_by_minute;
    let compared = MINUTES_COMPARED.min(minutes.len());
    for (name, ms) in [
        (P50, latency.p50_ms),
        (P99, latency.p99_ms),
        ("p99.9", latency.p999_ms),
        ("longest", latency.max_ms),
        ("p99 of the first ten minutes", mean_p99(&minutes[..compared])),
        ("p99 of the last ten minutes", mean_p99(&minutes[minutes.len() - compared..])),
    ] {
        run.note(name, Unit::Milliseconds, ms);
    }
    for usage in &steady.usage[..steady.usage.len() - 1] {
        if let Some(cost) = usage.cpu_us_per_row {
            run.note(format!("CPU of {}", usage.party), Unit::MicrosecondsPerRow, cost);
        }
    }
    run.note("WAL", Unit::BytesPerRow, steady.activity.wal_bytes_per_row);
    let end = |series: &Series| series.last().map_or(0.0, |(_, value)| *value);
    run.note("table at the end", Unit::Mebibytes, end(&samples.table));
    run.note("indexes at the end", Unit::Mebibytes, end(&samples.indexes));
    run.note("memory at the end", Unit::Mebibytes, end(&samples.memory));
    run.note("runs of autovacuum", Unit::Rows, samples.vacuums);
    let by_minute = |value: fn(&Latency) -> f64| {
        minutes.iter().enumerate().map(|(minute, latency)| (minute as f64 + 0.5, value(latency))).collect()
    };
    let series = [
        (P50, by_minute(|latency| latency.p50_ms)),
        (P99, by_minute(|latency| latency.p99_ms)),
        (TABLE, samples.table),
        (INDEXES, samples.indexes),
        (DEAD, samples.dead),
        (MEMORY, samples.memory),
    ];
    run.outcome.series.extend(series.map(|(name, values)| (name.to_owned(), values)));
}

/// The mean of the 99th percentiles of these minutes.
fn mean_p99(minutes: &[Latency]) -> f64 {
    minutes.iter().map(|latency| latency.p99_ms).sum::<f64>() / minutes.len().max(1) as f64
}
