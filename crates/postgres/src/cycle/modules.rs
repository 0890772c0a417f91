//! Reaping of the installed optional modules: inbox marks and finished requests past their retention, and expired claims.
//! The SQL functions of the modules delete them, in bounded batches.

use crate::connection::exec::ShortTransaction;
use crate::connection::pool::Database;
use crate::cycle::reap::PostgresReaper;
use crate::schema::relations;
use crate::sql::{Script, sql};
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use relay::health::availability::Availability;
use relay::health::stats::Stats;
use relay::reaper::{Pace, Reap, Reaped};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_postgres::types::{ToSql, Type};

/// The system catalogs need no privileges.
const FIND: &str = "
SELECT c.relname::text
FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE s.nspname = $1 AND c.relkind IN ('r', 'p') AND c.relname = ANY ($2)";

const REAP_INBOX: &str = "SELECT :inbox_reap(make_interval(secs => $1), $2)";
const REAP_IDEMPOTENCY: &str = "SELECT :idempotency_reap(make_interval(secs => $1), $2)";
/// Claims have their own time to live. The unused first parameter makes the three statements alike.
const REAP_ONCE: &str = "SELECT :once_reap($2) WHERE $1::float8 >= 0";

const COUNT_INBOX: &str =
    "SELECT count(*) FROM :processed_message WHERE processed_at < now() - make_interval(secs => $1)";
const COUNT_ONCE: &str = "SELECT count(*) FROM :once_key WHERE expires_at <= now() AND $1::float8 >= 0";

const UNFINISHED: &str = "SELECT requests, oldest FROM :idempotency_unfinished(make_interval(secs => $1))";

const ADVICE: &str = "Outbox rows are still deleted. If a privilege is missing, apply the output of `outbox-relay \
migrate --print-roles` again";

/// The table of a module, and the statements that reap it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModuleTable {
    table: &'static str,
    functions: &'static [&'static str],
    reap: &'static str,
    count: &'static str,
    retention: Duration,
}

pub struct ModulesReaper {
    transaction: ShortTransaction,
    table: TableName,
    modules: [ModuleTable; 3],
    batch_rows: i32,
    /// The rest of this round.
    remaining: VecDeque<ModuleTable>,
    /// The table of the latest attempt; empty while looking for installed modules.
    current: &'static str,
    reported: i64,
    stats: Arc<Stats>,
}

/// Unfinished requests past their retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// How many, counted up to 1,000.
    pub requests: i64,
    pub oldest: Option<SystemTime>,
}

impl ModulesReaper {
    /// For the modules in the schema of this outbox.
    pub fn new(database: Database, table: TableName, pace: Pace, stats: Arc<Stats>) -> ModulesReaper {
        let modules = [
            ModuleTable {
                table: "processed_message",
                functions: &["inbox_reap"],
                reap: REAP_INBOX,
                count: COUNT_INBOX,
                retention: pace.inbox_retention,
            },
            ModuleTable {
                table: "idempotency_key",
                functions: &["idempotency_reap", "idempotency_unfinished"],
                reap: REAP_IDEMPOTENCY,
                count: sql!("relay/count_idempotency"),
                retention: pace.idempotency_retention,
            },
            ModuleTable {
                table: "once_key",
                functions: &["once_reap"],
                reap: REAP_ONCE,
                count: COUNT_ONCE,
                retention: Duration::ZERO,
            },
        ];
        ModulesReaper {
            transaction: ShortTransaction::writing(database),
            table,
            modules,
            batch_rows: i32::try_from(pace.batch_rows).unwrap_or(i32::MAX),
            remaining: VecDeque::new(),
            current: "",
            reported: 0,
            stats,
        }
    }

    fn set_pace(&mut self, pace: Pace) {
        self.modules[0].retention = pace.inbox_retention;
        self.modules[1].retention = pace.idempotency_retention;
        self.batch_rows = i32::try_from(pace.batch_rows).unwrap_or(i32::MAX);
    }

    /// Deletes one batch of one module. A round starts by looking for installed modules, and skips a module that fails.
    pub(crate) async fn reap_once(&mut self) -> Result<Reaped, PostgresFault> {
        if self.remaining.is_empty() {
            self.current = "";
            self.remaining = self.find().await?;
        }
        let Some(module) = self.remaining.pop_front() else { return Ok(Reaped { rows: 0, more: false }) };
        self.current = module.table;
        self.require_own(&module).await?;
        let seconds = module.retention.as_secs_f64();
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&seconds, Type::FLOAT8), (&self.batch_rows, Type::INT4)];
        let sql = Script::new(module.reap, &self.table).render();
        let rows = self.transaction.query("deleting old rows of a module", &sql, &params).await?;
        let deleted: i32 = rows.first().map_or(0, |row| row.get(0));
        if deleted == self.batch_rows {
            self.remaining.push_front(module);
        } else if module.reap == REAP_IDEMPOTENCY {
            let unfinished = self.unfinished().await?;
            self.report(unfinished);
        }
        Ok(Reaped { rows: u64::from(deleted.unsigned_abs()), more: !self.remaining.is_empty() })
    }

    /// Runs a whole round. Returns the table of each installed module with the number of deleted rows. Skips a module that a
    /// relay is reaping.
    pub async fn reap_all(&mut self) -> Result<Vec<(&'static str, u64)>, PostgresFault> {
        let mut reaped: Vec<(&str, u64)> = Vec::new();
        loop {
            let Reaped { rows, more } = self.reap_once().await?;
            match reaped.last_mut() {
                Some((table, of_table)) if *table == self.current => *of_table += rows,
                _ if self.current.is_empty() => {}
                _ => reaped.push((self.current, rows)),
            }
            if !more {
                return Ok(reaped);
            }
        }
    }

    /// The number of rows that [`ModulesReaper::reap_all`] would delete.
    pub async fn count_all(&self) -> Result<Vec<(&'static str, u64)>, PostgresFault> {
        let mut counted = Vec::new();
        for module in self.find().await? {
            self.require_own(&module).await?;
            let seconds = module.retention.as_secs_f64();
            let sql = Script::new(module.count, &self.table).render();
            let params: [(&(dyn ToSql + Sync), Type); 1] = [(&seconds, Type::FLOAT8)];
            let rows = self.transaction.query("counting old rows of a module", &sql, &params).await?;
            let old: i64 = rows.first().map_or(0, |row| row.get(0));
            counted.push((module.table, old.unsigned_abs()));
        }
        Ok(counted)
    }

    /// Unfinished requests past retention. Those with a committed phase are never deleted: only the application knows their
    /// outcome.
    pub async fn unfinished(&self) -> Result<Unfinished, PostgresFault> {
        let seconds = self.modules[1].retention.as_secs_f64();
        let sql = Script::new(UNFINISHED, &self.table).render();
        let rows =
            self.transaction.query("counting unfinished requests", &sql, &[(&seconds, Type::FLOAT8)]).await?;
        let row = rows.first();
        Ok(Unfinished { requests: row.map_or(0, |row| row.get(0)), oldest: row.and_then(|row| row.get(1)) })
    }

    /// Logs once, and again when the number changes.
    fn report(&mut self, unfinished: Unfinished) {
        let Unfinished { requests, oldest } = unfinished;
        self.stats.unfinished_requests.set(requests);
        if requests == self.reported {
            return;
        }
        self.reported = requests;
        let oldest = oldest.map(|at| humantime::format_rfc3339_seconds(at).to_string());
        if requests == 0 {
            tracing::info!(
                code = "requests_unfinished",
                "no unfinished idempotency requests are past retention"
            );
        } else {
            tracing::warn!(
                code = "requests_unfinished",
                requests,
                oldest,
                "unfinished idempotency requests are older than idempotency_retention. Complete them in the \
                 application (idempotency_abandoned), or inspect {}",
                self.table.render("{idempotency_key}")
            );
        }
    }

    /// Another role could have created them before the module is installed.
    async fn require_own(&self, module: &ModuleTable) -> Result<(), PostgresFault> {
        let names: Vec<String> =
            [module.table].iter().chain(module.functions).map(|&name| name.to_owned()).collect();
        relations::require_own(&self.transaction, "checking the owner of a module", &self.table, &names).await
    }

    async fn find(&self) -> Result<VecDeque<ModuleTable>, PostgresFault> {
        let names = self.modules.map(|module| module.table);
        let names: &[&str] = &names;
        let schema = self.table.schema();
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&schema, Type::TEXT), (&names, Type::TEXT_ARRAY)];
        let rows = self.transaction.query("looking for modules", FIND, &params).await?;
        let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let is_installed = |module: &ModuleTable| found.iter().any(|name| name == module.table);
        Ok(self.modules.into_iter().filter(is_installed).collect())
    }
}

/// Reaps the outbox, then the modules, on one connection. A module that cannot be reaped does not prevent the outbox from
/// being reaped.
pub struct Reapers {
    outbox: PostgresReaper,
    modules: ModulesReaper,
    /// Whether the outbox is finished for this round.
    at_modules: bool,
    outage: Availability,
}

impl Reapers {
    pub fn new(outbox: PostgresReaper, modules: ModulesReaper) -> Reapers {
        Reapers {
            outbox,
            modules,
            at_modules: false,
            outage: Availability::new("reaper of the modules", "reaper_failed")
                .described("failing", "working again"),
        }
    }
}

impl Reap for Reapers {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, PostgresFault> {
        if !self.at_modules {
            self.modules.set_pace(pace);
            let Reaped { rows, more } = self.outbox.reap_once(pace).await?;
            self.at_modules = !more;
            return Ok(Reaped { rows, more: true });
        }
        let reaped = self.modules.reap_once().await;
        let party = self.modules.modules.iter().position(|module| module.table == self.modules.current);
        let party = party.unwrap_or(self.modules.modules.len());
        match reaped {
            Ok(_) => self.outage.worked(party),
            // The scout reports it.
            Err(fault) if fault.kind == FaultKind::Unavailable => {
                tracing::debug!("{fault}");
            }
            Err(fault) => self.outage.failed(party, &fault, ADVICE),
        }
        let more = !self.modules.remaining.is_empty();
        self.at_modules = more;
        Ok(Reaped { rows: 0, more }) // only rows of the outbox are counted
    }
}
