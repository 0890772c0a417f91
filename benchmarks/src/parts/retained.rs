//! Scenario 10: the table contains rows that were sent earlier. In each run, some of them are old enough for the
//! reaper.

use super::subjects::{make_route, note_rate, reference, relay_drains, relay_drains_existing};
use crate::database;
use crate::figures::{Unit, thousands};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_bench::place::Place;
use outbox_bench::postgres::load;

/// The rows that the reaper finds in each run. It runs once a minute by default, in which 2,000 rows/s are sent.
const ROWS_REAPED: u64 = 120_000;
/// In one transaction.
const ROWS_AT_ONCE: u64 = 500_000;

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(2_000_000));
    let retained = size.rows(10_000_000);
    let old = size.rows(ROWS_REAPED);
    let empty = Place::create(world.settings()).await?;
    let full = Place::create(world.settings()).await?;
    let client = database::connect(&world.postgres).await?;
    let table = full.table();
    for first in (0..retained).step_by(ROWS_AT_ONCE as usize) {
        let rows = ROWS_AT_ONCE.min(retained - first);
        client.batch_execute(&table.render(&insert_sent(rows))).await?;
    }
    for _ in 0..size.runs {
        let none = relay_drains(&empty, &shape, |settings| settings).await?;
        note_rate(&mut outcome.figures, "none", &none);

        let route = make_route(&full, &shape).await?;
        client.batch_execute(&table.render(&age(old))).await?;
        load::fill(full.database(), &table, &shape).await?;
        load::prepare(full.database(), &table).await?;
        let count = table.render("SELECT count(*) FROM {outbox}");
        let before: i64 = client.query_one(&count, &[]).await?.get(0);
        let drain = relay_drains_existing(&full, &route, &shape, |settings| settings).await?;
        let after: i64 = client.query_one(&count, &[]).await?.get(0);
        full.close(route).await?;
        note_rate(&mut outcome.figures, "retained", &drain);
        outcome.figures.push("rows reaped meanwhile", Unit::Rows, (before - after) as f64);
    }
    outcome.notes.push(format!(
        "{} rows were sent an hour earlier. Before each run, {} of them became old enough for the reaper. The rows \
         that a run marked stay for the next run.",
        thousands(retained as f64),
        thousands(old as f64)
    ));
    full.remove().await?;
    empty.remove().await?;
    Ok(())
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
