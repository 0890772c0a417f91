//! Scenario 11: Kafka was unavailable for half an hour while writers inserted 2,000 rows/s, which they still do. The
//! relay has to catch up.

use super::subjects::{arrived, check_all, make_route, note_rate, reference, relay_drains};
use crate::database;
use crate::figures::{Unit, thousands};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use anyhow::ensure;
use outbox_bench::Shape;
use outbox_bench::checking::verify::Committed;
use outbox_bench::place::{Place, Route};
use outbox_bench::processes::relay::Relay;
use outbox_bench::subject::Subject;
use outbox_relay::kafka::record::EVENT_ID;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Statement};

const ROWS_PER_SECOND: u64 = 2_000;
const OUTAGE_SECONDS: u64 = 30 * 60;
/// The rows of one transaction of the writer.
const ROWS_AT_ONCE: u64 = 20;
/// The rows that are written in this time always wait for the relay. So few waiting rows do not count as a backlog.
const FRESH: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const GONE_WITHIN: Duration = Duration::from_secs(600);

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(ROWS_PER_SECOND * OUTAGE_SECONDS));
    let place = Place::create(world.settings()).await?;
    for _ in 0..size.runs {
        let without = relay_drains(&place, &shape, |settings| settings).await?;
        note_rate(&mut outcome.figures, "without writers", &without);

        let route = make_route(&place, &shape).await?;
        place.fill(&shape).await?;
        let mut writer = Writer::open(&world.postgres, &place, &shape).await?;
        let caught_up = catch_up(&place, &route, &mut writer).await?;
        let committed = Committed(vec![writer.written]);
        // Fails if a row is out of order, whether it belongs to the backlog or was written during the drain.
        check_all(&place, &route, &committed, &Shape { rows: writer.written, ..shape }, EVENT_ID).await?;
        place.close(route).await?;
        let rate = caught_up.rows as f64 / caught_up.seconds;
        eprintln!("  with writers: rate {}", Unit::RowsPerSecond.show(rate));
        outcome.figures.push("with writers: rate", Unit::RowsPerSecond, rate);
        outcome.figures.push("with writers: time", Unit::Seconds, caught_up.seconds);
        outcome.figures.push("out of order", Unit::Rows, 0.0);
    }
    outcome.notes.push(format!(
        "The backlog of {} rows was inserted at once. The rate includes the rows that were written during the drain. \
         The drain ends when no more rows wait than are written in {FRESH:?}.",
        thousands(shape.rows as f64)
    ));
    place.remove().await?;
    Ok(())
}

/// The time until the backlog was gone.
struct CaughtUp {
    rows: u64,
    seconds: f64,
}

/// Starts a relay, keeps writing until the backlog is gone, and then waits until all records have arrived.
async fn catch_up(place: &Place, route: &Route, writer: &mut Writer) -> anyhow::Result<CaughtUp> {
    let mut relay = Relay::start(place, route).await?;
    let begun = Instant::now();
    let mut looked = begun;
    let no_backlog = FRESH.as_secs_f64() * ROWS_PER_SECOND as f64;
    let caught_up = loop {
        writer.keep_pace(begun).await?;
        if looked.elapsed() >= POLL_INTERVAL {
            looked = Instant::now();
            let arrived = arrived(place, route).await?;
            if writer.written.saturating_sub(arrived) as f64 <= no_backlog {
                break CaughtUp { rows: arrived, seconds: begun.elapsed().as_secs_f64() };
            }
            relay.check()?;
            ensure!(begun.elapsed() < GONE_WITHIN, "the backlog is not gone after {GONE_WITHIN:?}");
        }
    };
    let begun = Instant::now();
    while arrived(place, route).await? < writer.written {
        relay.check()?;
        ensure!(begun.elapsed() < GONE_WITHIN, "the last rows have not arrived after {GONE_WITHIN:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    relay.stop().await?;
    Ok(caught_up)
}

/// Continues the backlog, with the same keys and the next numbers.
struct Writer {
    client: Client,
    insert: Statement,
    /// The rows of the backlog and those that were written since.
    written: u64,
    backlog: u64,
}

impl Writer {
    async fn open(postgres: &str, place: &Place, shape: &Shape) -> anyhow::Result<Self> {
        let client = database::connect(postgres).await?;
        let insert = client.prepare(&shape.insert(&place.table())).await?;
        Ok(Self { client, insert, written: shape.rows, backlog: shape.rows })
    }

    /// Writes the rows that are due, at most one transaction, or waits until rows are due.
    async fn keep_pace(&mut self, begun: Instant) -> anyhow::Result<()> {
        let before = (self.written - self.backlog) as f64 / ROWS_PER_SECOND as f64;
        tokio::time::sleep_until((begun + Duration::from_secs_f64(before)).into()).await;
        let (first, last) = (self.written as i64, (self.written + ROWS_AT_ONCE) as i64 - 1);
        self.client.execute(&self.insert, &[&first, &last, &0_i64, &1_i64]).await?;
        self.written += ROWS_AT_ONCE;
        Ok(())
    }
}
