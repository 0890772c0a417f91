//! The reaper's statements: rows that were sent longer ago than the retention are deleted, in bounded batches.
//!
//! Rows are found by where they lie (`ctid`), a range of pages at a time, which needs no index: an index on `sent_at`
//! would cost every row that is marked. `reap_round` says which ranges.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::transaction::ShortTransaction;
pub(crate) use crate::postgres::cycle::reap_round::PATROLS_PER_RETENTION;
use crate::postgres::cycle::reap_round::{Looked, Rounds, range_pages};
use crate::postgres::cycle::statements::query::Template;
use crate::postgres::cycle::statements::reaper::{COUNT, EDGE, REAP, REAP_AROUND_LOCKS};
use crate::postgres::table::TableName;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::reaper::{Pace, Reap, Reaped};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};

const DELETING: &str = "deleting old rows";

/// The reaper's way to the outbox. Connects when it is first needed, and keeps no connection.
pub struct PostgresReaper {
    impatient: ShortTransaction,
    transaction: ShortTransaction,
    table: TableName,
    retention: Duration,
    batch_rows: usize,
    rounds: Rounds,
    /// Where a pass over the whole table is, for [`PostgresReaper::reap_slice`].
    pass: Pass,
}

#[derive(Default)]
struct Pass {
    at: u32,
    file: Option<i64>,
}

/// What one batch found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Whether it was this reaper's turn; if not, another relay is reaping, and nothing was looked at.
    pub ours: bool,
    /// Rows deleted, or counted.
    pub rows: u64,
    /// The table has more pages behind these.
    pub more: bool,
}

impl PostgresReaper {
    /// Deletes rows of this outbox that were sent longer ago than `retention`, `batch_rows` a transaction.
    pub fn new(
        database: Database,
        table: TableName,
        retention: Duration,
        batch_rows: usize,
    ) -> PostgresReaper {
        PostgresReaper {
            impatient: ShortTransaction::reaping(database.clone()),
            transaction: ShortTransaction::writing(database),
            table,
            retention,
            batch_rows,
            rounds: Rounds::new(),
            pass: Pass::default(),
        }
    }

    /// Counts the old rows of the next range of a pass over the table, and deletes none.
    pub(crate) async fn count_slice(&mut self) -> Result<Slice, Fault> {
        let range = range_pages(self.batch_rows);
        let looked = self.run("counting old rows", COUNT, &self.transaction, self.pass.at, range).await?;
        Ok(self.passed(range, looked))
    }

    /// Deletes the old rows of the next range of a pass over the table.
    pub(crate) async fn reap_slice(&mut self) -> Result<Slice, Fault> {
        let range = range_pages(self.batch_rows);
        let looked = self.reap_range(self.pass.at, range).await?;
        Ok(self.passed(range, looked))
    }

    fn passed(&mut self, range: u32, looked: Option<Looked>) -> Slice {
        let Some(looked) = looked else { return Slice { ours: false, rows: 0, more: true } };
        let rewritten = self.pass.file.replace(looked.file).is_some_and(|file| file != looked.file);
        self.pass.at = if rewritten { 0 } else { self.pass.at.saturating_add(range) };
        Slice { ours: true, rows: looked.deleted, more: self.pass.at < looked.pages }
    }

    /// Deletes the old rows of a range. Nothing if another relay is reaping.
    async fn reap_range(&self, at: u32, range: u32) -> Result<Option<Looked>, Fault> {
        match self.run(DELETING, REAP, &self.impatient, at, range).await {
            Err(fault) if fault.kind == FaultKind::Contended => {
                self.run(DELETING, REAP_AROUND_LOCKS, &self.transaction, at, range).await
            }
            looked => looked,
        }
    }

    async fn run(
        &self,
        doing: &'static str,
        sql: Template,
        transaction: &ShortTransaction,
        at: u32,
        range: u32,
    ) -> Result<Option<Looked>, Fault> {
        let (from, to) = (format!("({at},0)"), format!("({},0)", at.saturating_add(range)));
        let (retention, table) = (self.retention.as_secs_f64(), self.table.quoted());
        let params: [(&(dyn ToSql + Sync), Type); 4] =
            [(&from, Type::TEXT), (&to, Type::TEXT), (&retention, Type::FLOAT8), (&table, Type::TEXT)];
        let sql = self.table.render(sql.sql);
        let rows = transaction.query(doing, &sql, &params).await?;
        let Some(row) = rows.first() else { unreachable!("a SELECT without FROM is one row") };
        let (deleted, pages): (i64, i64) = (row.get(1), row.get(2));
        let looked = Looked {
            deleted: deleted.unsigned_abs(),
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
            file: row.get(3),
        };
        Ok(row.get::<_, bool>(0).then_some(looked))
    }

    async fn find_edge(&self) -> Result<u32, Fault> {
        let retention = self.retention.as_secs_f64();
        let sql = self.table.render(EDGE.sql);
        let rows = self.transaction.query(DELETING, &sql, &[(&retention, Type::FLOAT8)]).await?;
        let page = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        Ok(u32::try_from(page).unwrap_or(0))
    }
}

impl Reap for PostgresReaper {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, Fault> {
        (self.retention, self.batch_rows) = (pace.retention, pace.batch_rows);
        let at = match self.rounds.at() {
            Some(at) => at,
            None => {
                let page = self.find_edge().await?;
                self.rounds.found_edge(page);
                page
            }
        };
        let range = range_pages(self.batch_rows);
        let Some(looked) = self.reap_range(at, range).await? else {
            return Ok(Reaped { rows: 0, more: false });
        };
        let more = self.rounds.looked(range, looked, pace.interval, pace.retention);
        Ok(Reaped { rows: looked.deleted, more })
    }
}

/// The statement that deletes, whose plan a test looks at.
pub fn reap_sql(table: &TableName) -> String {
    table.render(REAP.sql)
}
