//! Scenarios 7 and 9 to 11: drains under adverse conditions, each next to a drain without them.

use super::results::Unit;
use super::run::{Run, assert_exact, reference};
use crate::drain;
use crate::place::{Place, Route};
use crate::relay::{Relay, Subject};
use crate::table::number;
use crate::verify::{self, Committed};
use crate::writers::{Snapshot, Writer};
use anyhow::ensure;
use deadpool_postgres::Object;
use std::time::{Duration, Instant};

/// The name of a topic that is not created.
const HELD: &str = "held";
const HELD_WITHIN: Duration = Duration::from_secs(60);

/// The rows that the reaper finds in each run. It runs once a minute by default, in which 2,000 rows/s are sent.
const ROWS_REAPED: u64 = 120_000;
/// The sent rows that one transaction inserts.
const SENT_ROWS_AT_ONCE: u64 = 500_000;

const ROWS_PER_SECOND: u64 = 2_000;
const OUTAGE_SECONDS: u64 = 30 * 60;
/// The rows of one transaction of the writer.
const ROWS_AT_ONCE: u64 = 20;
/// The rows that are written in this time always wait for the relay. So few waiting rows do not count as a backlog.
const FRESH: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const GONE_WITHIN: Duration = Duration::from_secs(600);

/// Scenario 7: a transaction keeps its snapshot open during the whole drain, as pg_dump does. Vacuum cannot remove the
/// row versions that the relay has marked since, so the relay reads past more and more dead index entries.
pub async fn held_snapshot(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(3_000_000));
    for _ in 0..run.size.runs {
        run.relay_rate("free", &shape).await?;

        let route = run.route(&shape).await?;
        run.place.fill(&shape).await?;
        let snapshot = Snapshot::take(&run.place.database).await?;
        let held = Run::relay_drains_to(route, |settings| settings).await?;
        snapshot.end().await?;
        run.show_rate("held", &held);
        run.note("held: first third", Unit::RowsPerSecond, held.first_third_rows_per_second);
        run.note("held: last third", Unit::RowsPerSecond, held.last_third_rows_per_second);
    }
    Ok(())
}

/// Scenario 9: rows of a missing topic precede the others. They are held, and the others are published.
pub async fn held_topic(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(200_000));
    let held = run.size.rows(1_000_000);
    let client = run.place.database.get().await?;
    for _ in 0..run.size.runs {
        run.relay_rate("free", &shape).await?;

        let route = run.route(&shape).await?;
        run.place.empty().await?;
        client.batch_execute(&run.place.table().render(&insert_held(held))).await?;
        let seconds = hold_topic(&client, &route).await?;
        run.note("until the topic is held", Unit::Seconds, seconds);
        run.place.add(&shape).await?;
        let behind = Run::relay_drains_to(route, |settings| settings).await?;
        run.show_rate("behind", &behind);
    }
    run.outcome.notes.push(format!(
        "{} rows of a missing topic have lower ids than the {} other rows. The hold existed before the measured relay \
         started.",
        number(held as f64),
        number(shape.rows as f64)
    ));
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
async fn hold_topic(client: &Object, route: &Route<'_>) -> anyhow::Result<f64> {
    let held = route.place.table().render("SELECT 1 FROM {hold}");
    let mut relay = Relay::start(route).await?;
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

/// Scenario 10: the table contains rows that were sent earlier. In each run, some of them are old enough for the reaper.
pub async fn retained(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(2_000_000));
    let retained = run.size.rows(10_000_000);
    let old = run.size.rows(ROWS_REAPED);
    let full = Place::create(run.world.settings()).await?;
    let client = full.database.get().await?;
    let table = full.table();
    for first in (0..retained).step_by(SENT_ROWS_AT_ONCE as usize) {
        let rows = SENT_ROWS_AT_ONCE.min(retained - first);
        client.batch_execute(&table.render(&insert_sent(rows))).await?;
    }
    for _ in 0..run.size.runs {
        run.relay_rate("none", &shape).await?;

        let route = full.route(&shape, super::run::PARTITIONS).await?;
        client.batch_execute(&table.render(&age(old))).await?;
        full.add(&shape).await?;
        let count = table.render("SELECT count(*) FROM {outbox}");
        let before: i64 = client.query_one(&count, &[]).await?.get(0);
        let drain = Run::relay_drains_to(route, |settings| settings).await?;
        let after: i64 = client.query_one(&count, &[]).await?.get(0);
        run.show_rate("retained", &drain);
        run.note("rows reaped meanwhile", Unit::Rows, (before - after) as f64);
    }
    run.outcome.notes.push(format!(
        "{} rows were sent an hour earlier. Before each run, {} of them became old enough for the reaper. The rows \
         that a run marked stay for the next run.",
        number(retained as f64),
        number(old as f64)
    ));
    drop(client);
    Ok(full.remove().await?)
}

/// Inserts rows of the usual size that were sent an hour ago.
fn insert_sent(rows: u64) -> String {
    format!(
        "INSERT INTO {{outbox}} (aggregate_type, aggregate_id, event_type, payload, created_at, sent_at)
         SELECT 'order', 'order-' || floor(random() * 10000)::bigint, 'OrderPlaced',
                json_build_object('note', gen_random_uuid()::text || repeat(' sent', 38)),
                now() - interval '1 hour', now() - interval '1 hour'
         FROM generate_series(1, {rows})"
    )
}

/// Makes the oldest rows older than the retention, which is a day by default.
fn age(rows: u64) -> String {
    format!(
        "UPDATE {{outbox}} SET sent_at = now() - interval '2 days'
         WHERE id IN (SELECT id FROM {{outbox}} ORDER BY id LIMIT {rows})"
    )
}

/// Scenario 11: Kafka was unavailable for half an hour while writers inserted 2,000 rows/s, which they still do. The
/// relay has to catch up.
pub async fn outage(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(ROWS_PER_SECOND * OUTAGE_SECONDS));
    let place = run.place;
    for _ in 0..run.size.runs {
        run.relay_rate("without writers", &shape).await?;

        let route = run.route(&shape).await?;
        place.fill(&shape).await?;
        // Continues the backlog, with the same keys and the next numbers.
        let mut writer =
            Writer::open(&place.database, shape.insert(&place.table()), 0, 1, shape.rows).await?;
        let caught_up = catch_up(&route, &mut writer).await?;
        // Fails if a row is out of order, whether it belongs to the backlog or was written during the drain.
        let committed = Committed(vec![writer.written]);
        assert_exact(&verify::read(&route, &committed, Relay::EVENT_ID).await?)?;
        route.close().await?;
        run.show("with writers: rate", Unit::RowsPerSecond, caught_up.rows as f64 / caught_up.seconds);
        run.note("with writers: time", Unit::Seconds, caught_up.seconds);
        run.note("out of order", Unit::Rows, 0.0);
    }
    run.outcome.notes.push(format!(
        "The backlog of {} rows was inserted at once. The rate includes the rows that were written during the drain. \
         The drain ends when no more rows wait than are written in {FRESH:?}.",
        number(shape.rows as f64)
    ));
    Ok(())
}

struct CaughtUp {
    rows: u64,
    seconds: f64,
}

/// Starts a relay, keeps writing until the backlog is gone, and then waits until all records have arrived.
async fn catch_up(route: &Route<'_>, writer: &mut Writer) -> anyhow::Result<CaughtUp> {
    let mut relay = Relay::start(route).await?;
    let begun = Instant::now();
    let mut looked = begun;
    let no_backlog = FRESH.as_secs_f64() * ROWS_PER_SECOND as f64;
    let caught_up = loop {
        // Writes the rows that are due, at most one transaction, or waits until rows are due.
        let due = (writer.written - route.shape.rows) as f64 / ROWS_PER_SECOND as f64;
        tokio::time::sleep_until((begun + Duration::from_secs_f64(due)).into()).await;
        writer.write(ROWS_AT_ONCE).await?;
        if looked.elapsed() >= POLL_INTERVAL {
            looked = Instant::now();
            let arrived = route.arrived().await?;
            if writer.written.saturating_sub(arrived) as f64 <= no_backlog {
                break CaughtUp { rows: arrived, seconds: begun.elapsed().as_secs_f64() };
            }
            relay.check()?;
            ensure!(begun.elapsed() < GONE_WITHIN, "the backlog is not gone after {GONE_WITHIN:?}");
        }
    };
    drain::wait_for_all(route, &mut relay, writer.written).await?;
    relay.stop().await?;
    Ok(caught_up)
}
