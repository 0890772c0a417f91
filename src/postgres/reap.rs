//! Reaping: rows that were sent longer ago than the retention are deleted, in bounded batches.
//!
//! It walks the primary key, since ids are drawn in about the order in which rows are sent: an index on `sent_at` would
//! cost every row that is marked. It remembers how far it came, so that it does not walk the same rows again.

use super::connect::Database;
use super::table::TableName;
use super::transaction::ShortTransaction;
use crate::relay::failure::Fault;
use crate::relay::reaper::{Pace, Reap, Reaped};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};

/// One transaction, one relay at a time, round rows that somebody has locked. Looks at `$2` rows, deletes those of
/// them that are old enough, and tells how far it looked. A row that is unsent, or was put back meanwhile, never fits:
/// its `sent_at` is compared again under its lock.
const REAP: &str = "
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($4::text || ' reaper', 0)) AS ours
), slice AS MATERIALIZED (
    SELECT o.id, o.sent_at, o.sent_at < clock_timestamp() - $3::float8 * interval '1 second' AS old
    FROM {outbox} o
    WHERE o.id > $1::bigint AND (SELECT ours FROM turn)
    ORDER BY o.id
    LIMIT $2::bigint
), locked AS MATERIALIZED (
    SELECT o.id
    FROM {outbox} o
    WHERE o.id = ANY (ARRAY(SELECT id FROM slice WHERE old))
      AND o.sent_at < clock_timestamp() - $3::float8 * interval '1 second'
    FOR UPDATE SKIP LOCKED
), reaped AS (
    DELETE FROM {outbox} o WHERE o.id = ANY (ARRAY(SELECT id FROM locked)) RETURNING o.id
)
SELECT (SELECT ours FROM turn), (SELECT count(*) FROM reaped), count(*), max(id), count(*) FILTER (WHERE old),
       count(*) FILTER (WHERE sent_at IS NULL)
FROM slice";

/// The same look, without a turn and without deleting.
const COUNT: &str = "
SELECT count(*), max(id), count(*) FILTER (WHERE old)
FROM (
    SELECT o.id, o.sent_at < clock_timestamp() - $3::float8 * interval '1 second' AS old
    FROM {outbox} o
    WHERE o.id > $1::bigint
    ORDER BY o.id
    LIMIT $2::bigint
) AS slice";

/// The reaper's way to the outbox. Connects when it is first needed, and keeps no connection.
pub struct PostgresReaper {
    transaction: ShortTransaction,
    table: TableName,
    retention: Duration,
    batch_rows: usize,
    looked_to: i64,
}

/// What one batch found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whether it was this reaper's turn; if not, another relay is at it, and nothing was looked at.
    pub ours: bool,
    /// Rows deleted.
    pub deleted: u64,
    /// The slice was full: the table goes on behind it.
    pub full: bool,
    /// Rows that were old enough, those that somebody had locked included.
    old: i64,
    /// Every row is unsent.
    all_unsent: bool,
}

impl PostgresReaper {
    /// Deletes rows of this outbox that were sent longer ago than `retention`, `batch_rows` a transaction.
    pub fn new(
        database: Database,
        table: TableName,
        retention: Duration,
        batch_rows: usize,
    ) -> PostgresReaper {
        let transaction = ShortTransaction::writing(database);
        PostgresReaper { transaction, table, retention, batch_rows, looked_to: i64::MIN }
    }

    /// Counts the old rows of one batch, deletes none, and goes on behind it with the next; `None` at the end of the
    /// table.
    pub async fn count_slice(&mut self) -> Result<Option<u64>, Fault> {
        let (retention, rows_max) = (self.retention.as_secs_f64(), self.batch_rows as i64);
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.looked_to, Type::INT8), (&rows_max, Type::INT8), (&retention, Type::FLOAT8)];
        let rows = self.transaction.query("counting old rows", &self.table.render(COUNT), &params).await?;
        let Some(row) = rows.first() else { unreachable!("an aggregate without GROUP BY is one row") };
        let (looked, last, old): (i64, Option<i64>, i64) = (row.get(0), row.get(1), row.get(2));
        self.looked_to = last.unwrap_or(self.looked_to);
        Ok((looked > 0).then_some(old.unsigned_abs()))
    }

    /// Deletes one batch, and goes on behind it with the next.
    pub async fn reap_slice(&mut self) -> Result<Slice, Fault> {
        let (retention, rows_max) = (self.retention.as_secs_f64(), self.batch_rows as i64);
        let lock = self.table.quoted();
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.looked_to, Type::INT8),
            (&rows_max, Type::INT8),
            (&retention, Type::FLOAT8),
            (&lock, Type::TEXT),
        ];
        let rows = self.transaction.query("deleting old rows", &self.table.render(REAP), &params).await?;
        let Some(row) = rows.first() else { unreachable!("an aggregate without GROUP BY is one row") };
        let (looked, last, unsent): (i64, Option<i64>, i64) = (row.get(2), row.get(3), row.get(5));
        self.looked_to = last.unwrap_or(self.looked_to);
        Ok(Slice {
            ours: row.get(0),
            deleted: row.get::<_, i64>(1).unsigned_abs(),
            full: looked == rows_max,
            old: row.get(4),
            all_unsent: unsent == looked,
        })
    }
}

impl Reap for PostgresReaper {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, Fault> {
        (self.retention, self.batch_rows) = (pace.retention, pace.batch_rows);
        let slice = self.reap_slice().await?;
        // The first slice with sent rows, but without an old one, is where the young ones begin: the next round begins
        // anew. A slice of unsent rows only says nothing: they may be those of a held topic, with old rows behind.
        let more = slice.full && (slice.old > 0 || slice.all_unsent);
        if !more {
            self.looked_to = i64::MIN;
        }
        Ok(Reaped { rows: slice.deleted, more })
    }
}
