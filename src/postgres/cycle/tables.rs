//! Measures the tables and what holds vacuum back, for the metrics. Once a minute, because it reads the size of every file of
//! the tables.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::fault::fault;
use crate::postgres::connection::transaction::{Params, ShortTransaction};
use crate::postgres::diagnose::holders::HOLDERS;
use crate::postgres::table::TableName;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::outage::Outage;
use crate::relay::health::stats::Stats;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_postgres::types::Type;

const DOING: &str = "measuring the tables";
const EVERY: Duration = Duration::from_secs(60);
/// The tables that can grow without limit.
const TABLES: [&str; 3] = ["{outbox}", "{dead_letter}", "{act}"];
const ADVICE: &str = "The metrics of the table sizes and of vacuum are outdated";

/// Needs no privilege on the tables. The lock that it takes conflicts only with ACCESS EXCLUSIVE.
const SIZES: &str = "
SELECT array(SELECT coalesce(pg_total_relation_size(to_regclass(t.name)), 0)
             FROM unnest($2::text[]) WITH ORDINALITY AS t(name, place) ORDER BY t.place),
       greatest(age(c.relfrozenxid), age(d.datfrozenxid))::bigint
FROM pg_class AS c, pg_database AS d
WHERE c.oid = $1::text::regclass AND d.datname = current_database()";

/// Measures until the relay ends.
pub(crate) async fn keep_measuring(database: Database, table: TableName, stats: Arc<Stats>) {
    let transaction = ShortTransaction::reading(database);
    let outage = Outage::new("table measurements", "backlog_not_measured");
    let outage = outage.described("failing", "working again");
    loop {
        match measure(&transaction, &table, &stats).await {
            Ok(()) => outage.worked(0),
            // The scout fails the same way and logs it.
            Err(fault) if fault.kind == FaultKind::Unavailable => tracing::debug!("{fault}"),
            Err(fault) => outage.failed(0, &fault, ADVICE),
        }
        sleep(EVERY).await;
    }
}

async fn measure(transaction: &ShortTransaction, table: &TableName, stats: &Stats) -> Result<(), Fault> {
    let (outbox, tables) = (table.quoted(), TABLES.map(|name| table.render(name)));
    let tables = tables.as_slice();
    let params: Params<'_> = &[(&outbox, Type::TEXT), (&tables, Type::TEXT_ARRAY)];
    let rows = transaction.query(DOING, SIZES, params).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let read = || Ok((row.try_get::<_, Vec<i64>>(0)?, row.try_get(1)?));
    let (sizes, age) = read().map_err(|error| fault(DOING, error))?;
    for (name, bytes) in TABLES.iter().zip(sizes) {
        stats.table_bytes.get_or_create(&vec![("table", table.name_of(name))]).set(bytes);
    }
    stats.transaction_id_age.set(age);
    let rows = transaction.query(DOING, &table.render(HOLDERS), &[(&1_i64, Type::INT8)]).await?;
    let held: i32 = rows.first().map_or(Ok(0), |row| row.try_get(4)).map_err(|error| fault(DOING, error))?;
    stats.vacuum_held_back.set(held.into());
    Ok(())
}
