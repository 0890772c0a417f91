//! Reaping of the optional modules, where they were made: marks of the inbox and finished requests that are older than
//! their retention, and claims that have expired. Their SQL functions do it, in bounded batches.

use crate::config;
use crate::postgres::connection::connect::Database;
use crate::postgres::connection::transaction::ShortTransaction;
use crate::postgres::cycle::reap::PostgresReaper;
use crate::postgres::table::TableName;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::outage::Outage;
use crate::relay::health::stats::Stats;
use crate::relay::reaper::{Pace, Reap, Reaped};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_postgres::types::{ToSql, Type};

/// From the catalogue, which needs no rights.
const FIND: &str = "
SELECT c.relname::text
FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE s.nspname = $1 AND c.relkind IN ('r', 'p') AND c.relname = ANY ($2)";

const REAP_INBOX: &str = "SELECT {inbox_reap}(make_interval(secs => $1), $2)";
const REAP_IDEMPOTENCY: &str = "SELECT {idempotency_reap}(make_interval(secs => $1), $2)";
/// Claims bear their own time to live. The first parameter is there for the three to be alike.
const REAP_ONCE: &str = "SELECT {once_reap}($2) WHERE $1::float8 >= 0";

const COUNT_INBOX: &str =
    "SELECT count(*) FROM {processed_message} WHERE processed_at < now() - make_interval(secs => $1)";
const COUNT_IDEMPOTENCY: &str =
    "SELECT count(*) FROM {idempotency_key} WHERE finished_at < now() - make_interval(secs => $1)";
const COUNT_ONCE: &str = "SELECT count(*) FROM {once_key} WHERE expires_at <= now() AND $1::float8 >= 0";

const UNFINISHED: &str = "SELECT requests, oldest FROM {idempotency_unfinished}(make_interval(secs => $1))";

const ADVICE: &str = "Rows of the outbox are still deleted. Apply the output of `outbox-relay migrate \
     --print-roles` again after each `migrate --with`";

/// One module to reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    table: &'static str,
    reap: &'static str,
    count: &'static str,
    retention: Duration,
}

/// The way to the modules' tables.
pub struct ModulesReaper {
    transaction: ShortTransaction,
    table: TableName,
    all: [Work; 3],
    batch_rows: i32,
    /// What is left of this round.
    left: VecDeque<Work>,
    /// The table that was tried last; nothing for the look which of them are there.
    tried: &'static str,
    reported: i64,
    stats: Arc<Stats>,
}

/// What one batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Rows deleted.
    pub rows: u64,
    /// Another batch belongs to this round.
    pub more: bool,
}

/// Requests that were begun long ago and never finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// How many; 1000 are counted at most.
    pub requests: i64,
    /// When the oldest was begun.
    pub oldest: Option<SystemTime>,
}

impl ModulesReaper {
    /// Of the modules in the schema of this outbox.
    pub fn new(
        database: Database,
        table: TableName,
        settings: &config::Reaper,
        stats: Arc<Stats>,
    ) -> ModulesReaper {
        let all = [
            Work {
                table: "processed_message",
                reap: REAP_INBOX,
                count: COUNT_INBOX,
                retention: settings.inbox_retention,
            },
            Work {
                table: "idempotency_key",
                reap: REAP_IDEMPOTENCY,
                count: COUNT_IDEMPOTENCY,
                retention: settings.idempotency_retention,
            },
            Work { table: "once_key", reap: REAP_ONCE, count: COUNT_ONCE, retention: Duration::ZERO },
        ];
        ModulesReaper {
            transaction: ShortTransaction::writing(database),
            table,
            all,
            batch_rows: i32::try_from(settings.batch_size).unwrap_or(i32::MAX),
            left: VecDeque::new(),
            tried: "",
            reported: 0,
            stats,
        }
    }

    /// The next round goes by this.
    fn set_pace(&mut self, pace: Pace) {
        self.all[0].retention = pace.inbox_retention;
        self.all[1].retention = pace.idempotency_retention;
        self.batch_rows = i32::try_from(pace.batch_rows).unwrap_or(i32::MAX);
    }

    /// Deletes one batch of one module. A round begins with a look which of them are there. A module that fails is left
    /// out of the round.
    pub async fn reap_once(&mut self) -> Result<Batch, Fault> {
        if self.left.is_empty() {
            self.tried = "";
            self.left = self.find().await?;
        }
        let Some(work) = self.left.pop_front() else { return Ok(Batch::default()) };
        self.tried = work.table;
        let seconds = work.retention.as_secs_f64();
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&seconds, Type::FLOAT8), (&self.batch_rows, Type::INT4)];
        let sql = self.table.render(work.reap);
        let rows = self.transaction.query("deleting old rows of a module", &sql, &params).await?;
        let deleted: i32 = rows.first().map_or(0, |row| row.get(0));
        if deleted == self.batch_rows {
            self.left.push_front(work);
        } else if work.reap == REAP_IDEMPOTENCY {
            let unfinished = self.unfinished().await?;
            self.report(unfinished);
        }
        Ok(Batch { rows: u64::from(deleted.unsigned_abs()), more: !self.left.is_empty() })
    }

    /// A whole round for a person: the name of each module's table that is there, and how many rows were deleted. A module
    /// that a relay is reaping just then is left to it.
    pub async fn reap_all(&mut self) -> Result<Vec<(&'static str, u64)>, Fault> {
        let mut reaped: Vec<(&str, u64)> = Vec::new();
        loop {
            let Batch { rows, more } = self.reap_once().await?;
            match reaped.last_mut() {
                Some((table, of_table)) if *table == self.tried => *of_table += rows,
                _ if self.tried.is_empty() => {}
                _ => reaped.push((self.tried, rows)),
            }
            if !more {
                return Ok(reaped);
            }
        }
    }

    /// What [`ModulesReaper::reap_all`] would delete.
    pub async fn count_all(&self) -> Result<Vec<(&'static str, u64)>, Fault> {
        let mut counted = Vec::new();
        for work in self.find().await? {
            let seconds = work.retention.as_secs_f64();
            let sql = self.table.render(work.count);
            let params: [(&(dyn ToSql + Sync), Type); 1] = [(&seconds, Type::FLOAT8)];
            let rows = self.transaction.query("counting old rows of a module", &sql, &params).await?;
            let old: i64 = rows.first().map_or(0, |row| row.get(0));
            counted.push((work.table, old.unsigned_abs()));
        }
        Ok(counted)
    }

    /// Requests older than the retention that nobody has finished. They are never deleted: what became of them is for
    /// the application to say.
    pub async fn unfinished(&self) -> Result<Unfinished, Fault> {
        let seconds = self.all[1].retention.as_secs_f64();
        let sql = self.table.render(UNFINISHED);
        let rows =
            self.transaction.query("counting unfinished requests", &sql, &[(&seconds, Type::FLOAT8)]).await?;
        let row = rows.first();
        Ok(Unfinished { requests: row.map_or(0, |row| row.get(0)), oldest: row.and_then(|row| row.get(1)) })
    }

    /// Said once, and again when the number has changed.
    fn report(&mut self, unfinished: Unfinished) {
        let Unfinished { requests, oldest } = unfinished;
        self.stats.unfinished_requests.set(requests);
        if requests == self.reported {
            return;
        }
        self.reported = requests;
        let oldest = oldest.map(|at| humantime::format_rfc3339_seconds(at).to_string());
        if requests == 0 {
            tracing::info!("no unfinished idempotency requests are past retention any more");
        } else {
            tracing::warn!(
                requests,
                oldest,
                "unfinished idempotency requests are older than idempotency_retention. Complete them in the \
                 application (idempotency_abandoned), or inspect {}",
                self.table.render("{idempotency_key}")
            );
        }
    }

    async fn find(&self) -> Result<VecDeque<Work>, Fault> {
        let names = self.all.map(|work| work.table);
        let names: &[&str] = &names;
        let schema = self.table.schema();
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&schema, Type::TEXT), (&names, Type::TEXT_ARRAY)];
        let rows = self.transaction.query("looking for modules", FIND, &params).await?;
        let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        Ok(self.all.into_iter().filter(|work| found.iter().any(|name| name == work.table)).collect())
    }
}

/// The outbox's reaper, and behind it the modules'. One after the other: they share a connection, and a module that
/// cannot be reaped keeps nobody from reaping the outbox.
pub struct Reapers {
    outbox: PostgresReaper,
    modules: ModulesReaper,
    /// The outbox is done for this round.
    at_modules: bool,
    outage: Outage,
}

impl Reapers {
    /// These two.
    pub fn new(outbox: PostgresReaper, modules: ModulesReaper) -> Reapers {
        Reapers { outbox, modules, at_modules: false, outage: Outage::new("module reaper") }
    }
}

impl Reap for Reapers {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, Fault> {
        if !self.at_modules {
            self.modules.set_pace(pace);
            let Reaped { rows, more } = self.outbox.reap_once(pace).await?;
            self.at_modules = !more;
            return Ok(Reaped { rows, more: true });
        }
        let done = self.modules.reap_once().await;
        let party = self.modules.all.iter().position(|work| work.table == self.modules.tried);
        let party = party.unwrap_or(self.modules.all.len());
        match done {
            Ok(_) => self.outage.worked(party),
            // The scout meets that too, and says it.
            Err(fault) if fault.kind == FaultKind::Unavailable => tracing::debug!("{fault}"),
            Err(fault) => self.outage.failed(party, &fault, ADVICE),
        }
        let more = !self.modules.left.is_empty();
        self.at_modules = more;
        // Not counted with the rows of the outbox.
        Ok(Reaped { rows: 0, more })
    }
}
