//! Reaping: rows that were sent longer ago than the retention are deleted, in bounded batches.
//!
//! It walks the primary key, since ids are drawn in about the order in which rows are sent: an index on `sent_at` would
//! cost every row that is marked. It remembers how far it came, so that it does not walk the same rows again.

use super::connect::Database;
use super::fault::answer;
use super::table::TableName;
use crate::relay::failure::Fault;
use crate::relay::reaper::{Reap, Reaped};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};

/// One transaction, one relay at a time, round rows that somebody has locked. Looks at `$2` rows, deletes those of
/// them that are old enough, and tells how far it looked.
const REAP: &str = "
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($4::text || ' reaper', 0)) AS ours
), slice AS MATERIALIZED (
    SELECT o.id, o.sent_at
    FROM {outbox} o
    WHERE o.id > $1::bigint AND (SELECT ours FROM turn)
    ORDER BY o.id
    LIMIT $2::bigint
), old AS MATERIALIZED (
    SELECT o.id
    FROM {outbox} o
    WHERE o.id = ANY (ARRAY(SELECT id FROM slice WHERE sent_at < clock_timestamp() - $3::float8 * interval '1 second'))
      AND o.sent_at < clock_timestamp() - $3::float8 * interval '1 second'
    FOR UPDATE SKIP LOCKED
), reaped AS (
    DELETE FROM {outbox} o USING old WHERE o.id = old.id RETURNING o.id
)
SELECT (SELECT count(*) FROM reaped), (SELECT count(*) FROM slice), (SELECT max(id) FROM slice),
       (SELECT count(*) FROM slice WHERE sent_at < clock_timestamp() - $3::float8 * interval '1 second')";

const COUNT_OLD: &str = "
SELECT count(*) FROM {outbox} WHERE sent_at < clock_timestamp() - $1::float8 * interval '1 second'";

/// The reaper's way to the outbox. Connects when it is first needed, and keeps no connection.
pub struct PostgresReaper {
    database: Database,
    table: TableName,
    retention: Duration,
    batch_rows: usize,
    looked_to: i64,
}

impl PostgresReaper {
    /// Deletes rows of this outbox that were sent longer ago than `retention`, `batch_rows` a transaction.
    pub fn new(
        database: Database,
        table: TableName,
        retention: Duration,
        batch_rows: usize,
    ) -> PostgresReaper {
        PostgresReaper { database, table, retention, batch_rows, looked_to: i64::MIN }
    }

    /// How many rows could be deleted now. Reads the whole table.
    pub async fn count_old(&self) -> Result<i64, Fault> {
        const DOING: &str = "counting old rows";
        let connection = self.database.get().await?;
        let retention = self.retention.as_secs_f64();
        let sql = self.table.render(COUNT_OLD);
        let rows = answer(DOING, connection.query_typed(&sql, &[(&retention, Type::FLOAT8)])).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }
}

impl Reap for PostgresReaper {
    async fn reap_once(&mut self) -> Result<Reaped, Fault> {
        const DOING: &str = "deleting old rows";
        let connection = self.database.get().await?;
        let (retention, rows_max) = (self.retention.as_secs_f64(), self.batch_rows as i64);
        let lock = self.table.quoted();
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.looked_to, Type::INT8),
            (&rows_max, Type::INT8),
            (&retention, Type::FLOAT8),
            (&lock, Type::TEXT),
        ];
        let rows = answer(DOING, connection.query_typed(&self.table.render(REAP), &params)).await?;
        let Some(row) = rows.first() else { return Ok(Reaped { rows: 0, more: false }) };
        let (reaped, looked, last, old): (i64, i64, Option<i64>, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        // A slice without a single old row is where the young ones begin, or where old unsent ones wait: go on while
        // the table goes on, and begin anew next time.
        let more = looked == rows_max && old > 0;
        self.looked_to = if more { last.unwrap_or(i64::MIN) } else { i64::MIN };
        Ok(Reaped { rows: reaped.unsigned_abs(), more })
    }
}
