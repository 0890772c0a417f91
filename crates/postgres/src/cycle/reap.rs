//! The reaper: deletes rows that were sent longer ago than the retention, in bounded batches.
//!
//! It finds rows by their place (`ctid`), one range of pages at a time. An index on `sent_at` would make every settlement
//! more expensive. `round` chooses the ranges.

pub mod modules;
pub(crate) mod round;

use crate::connection::connect::Database;
use crate::connection::transaction::ShortTransaction;
pub use crate::cycle::reap::round::PATROLS_PER_RETENTION;
use crate::cycle::reap::round::{Rounds, ScannedRange, range_pages};
use crate::cycle::statements::query::Template;
use crate::cycle::statements::reaper::{COUNT, EDGE, REAP, REAP_AROUND_LOCKS};
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use relay::reaper::{Pace, Reap, Reaped};
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};

const DELETING: &str = "deleting old rows";

/// How long other sessions may hold the reaper's row until this is a fault.
const OTHERS_MAX: Duration = Duration::from_secs(3_600);

/// The reaper's access to the outbox. It connects on first use, and keeps no connection.
pub struct PostgresReaper {
    /// Has the reaper's short lock timeout.
    reaping: ShortTransaction,
    transaction: ShortTransaction,
    table: TableName,
    retention: Duration,
    batch_rows: usize,
    rounds: Rounds,
    /// Since when other sessions have held the reaper's row at each attempt.
    others_since: Option<Instant>,
    /// The position of [`PostgresReaper::reap_step`] and [`PostgresReaper::count_step`].
    pass: Pass,
}

/// A pass over the whole table.
#[derive(Default)]
struct Pass {
    at: u32,
    file: Option<i64>,
}

/// One step of a pass over the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassStep {
    /// False if another relay is reaping, so that this step did nothing.
    pub ours: bool,
    /// Rows deleted or counted.
    pub rows: u64,
    /// Whether there are more pages.
    pub more: bool,
}

impl PostgresReaper {
    /// Deletes rows of this outbox that were sent longer ago than `retention`, up to `batch_rows` per transaction.
    pub fn new(
        database: Database,
        table: TableName,
        retention: Duration,
        batch_rows: usize,
    ) -> PostgresReaper {
        PostgresReaper {
            reaping: ShortTransaction::reaping(database.clone()),
            transaction: ShortTransaction::writing(database),
            table,
            retention,
            batch_rows,
            rounds: Rounds::new(),
            others_since: None,
            pass: Pass::default(),
        }
    }

    /// Counts the old rows of the next range of pages.
    pub async fn count_step(&mut self) -> Result<PassStep, PostgresFault> {
        let range = range_pages(self.batch_rows);
        let scanned = self.run("counting old rows", COUNT, &self.transaction, self.pass.at, range).await?;
        Ok(self.advance(range, scanned))
    }

    /// Deletes the old rows of the next range of pages.
    pub async fn reap_step(&mut self) -> Result<PassStep, PostgresFault> {
        let range = range_pages(self.batch_rows);
        let scanned = self.reap_range(self.pass.at, range).await?;
        Ok(self.advance(range, scanned))
    }

    fn advance(&mut self, range: u32, scanned: Option<ScannedRange>) -> PassStep {
        let Some(scanned) = scanned else { return PassStep { ours: false, rows: 0, more: true } };
        let rewritten = self.pass.file.replace(scanned.file).is_some_and(|file| file != scanned.file);
        self.pass.at = if rewritten { 0 } else { self.pass.at.saturating_add(range) };
        PassStep { ours: true, rows: scanned.old_rows, more: self.pass.at < scanned.pages }
    }

    /// Deletes the old rows of a range. Returns `None` if another relay is reaping.
    async fn reap_range(&self, at: u32, range: u32) -> Result<Option<ScannedRange>, PostgresFault> {
        match self.run(DELETING, REAP, &self.reaping, at, range).await {
            Err(fault) if fault.kind == FaultKind::Contended => {
                self.run(DELETING, REAP_AROUND_LOCKS, &self.transaction, at, range).await
            }
            scanned => scanned,
        }
    }

    async fn run(
        &self,
        doing: &'static str,
        sql: Template,
        transaction: &ShortTransaction,
        at: u32,
        range: u32,
    ) -> Result<Option<ScannedRange>, PostgresFault> {
        let (from, to) = (format!("({at},0)"), format!("({},0)", at.saturating_add(range)));
        let (retention, table) = (self.retention.as_secs_f64(), self.table.quoted());
        let params: [(&(dyn ToSql + Sync), Type); 4] =
            [(&from, Type::TEXT), (&to, Type::TEXT), (&retention, Type::FLOAT8), (&table, Type::TEXT)];
        let sql = self.table.render(sql.sql);
        let rows = transaction.query(doing, &sql, &params).await?;
        let Some(row) = rows.first() else { unreachable!("a SELECT without FROM is one row") };
        let (old_rows, pages): (i64, i64) = (row.get(1), row.get(2));
        let scanned = ScannedRange {
            old_rows: old_rows.unsigned_abs(),
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
            file: row.get(3),
        };
        Ok(row.get::<_, bool>(0).then_some(scanned))
    }

    /// Another relay is reaping. If that never ends, something else holds the lock, and nothing is deleted.
    fn not_our_turn(&mut self) -> Result<Reaped, PostgresFault> {
        let others_for = self.others_since.get_or_insert_with(Instant::now).elapsed();
        if others_for < OTHERS_MAX {
            return Ok(Reaped { rows: 0, more: false });
        }
        let message = format!(
            "other sessions have held the row of {} for {} min. Unless another relay is deleting a large backlog, find \
             the session in pg_locks and end it",
            self.table.render("{reaper}"),
            others_for.as_secs() / 60
        );
        Err(PostgresFault { kind: FaultKind::Refused, doing: DELETING, message })
    }

    async fn find_edge(&self) -> Result<u32, PostgresFault> {
        let retention = self.retention.as_secs_f64();
        let sql = self.table.render(EDGE.sql);
        let rows = self.transaction.query(DELETING, &sql, &[(&retention, Type::FLOAT8)]).await?;
        let page = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        Ok(u32::try_from(page).unwrap_or(0))
    }
}

impl Reap for PostgresReaper {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, PostgresFault> {
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
        let Some(scanned) = self.reap_range(at, range).await? else {
            return self.not_our_turn();
        };
        self.others_since = None;
        let more = self.rounds.advance(range, scanned, pace.interval, pace.retention);
        Ok(Reaped { rows: scanned.old_rows, more })
    }
}

/// The statement that deletes, for tests of its plan.
pub fn reap_sql(table: &TableName) -> String {
    table.render(REAP.sql)
}
