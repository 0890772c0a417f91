//! The reaper: deletes rows that were sent longer ago than the retention, in bounded batches.
//!
//! It finds rows by their place (`ctid`), one range of pages at a time. An index on `sent_at` would make every settlement
//! more expensive. [`Rounds`] chooses the ranges.
//!
//! Then it reaps the installed optional modules: inbox marks and finished requests past their retention, and expired claims. The
//! SQL functions of the modules delete them.

use crate::connection::exec::ShortTransaction;
use crate::connection::pool::Database;
use crate::cycle::statements::Reaping;
use crate::schema::relations;
use crate::sql::{Script, sql};
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use relay::health::availability::Availability;
use relay::health::stats::Stats;
use relay::reaper::{Pace, Reap, Reaped};
use settings::text;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

const DELETING: &str = "deleting old rows";

/// If a deletion took less than this, the next range is larger again. It is far below the timeout of the statement, because a range
/// of twice the size takes about twice as long.
const QUICK: Duration = Duration::from_secs(3);

/// How long other sessions may hold the reaper's row until this is a fault.
const OTHERS_MAX: Duration = Duration::from_secs(3_600);

/// The reaper's access to the outbox and the modules. It connects on first use, and keeps no connection.
pub struct PostgresReaper {
    /// Has the reaper's short lock timeout.
    reaping: ShortTransaction,
    transaction: ShortTransaction,
    statements: Reaping,
    table: TableName,
    pace: Pace,
    rounds: Rounds,
    /// How many times the range of pages was halved because its deletion took too long, as that of large payloads does.
    halvings: u32,
    /// Since when other sessions have held the reaper's row at each attempt.
    others_since: Option<Instant>,
    /// The page and the file of the table where [`PostgresReaper::step`] continues.
    pass: (u32, Option<i64>),
}

impl PostgresReaper {
    pub fn new(database: Database, table: TableName, pace: Pace) -> PostgresReaper {
        PostgresReaper {
            reaping: ShortTransaction::reaping(database.clone()),
            transaction: ShortTransaction::writing(database),
            statements: Reaping::new(&table),
            table,
            pace,
            rounds: Rounds::default(),
            halvings: 0,
            others_since: None,
            pass: (0, None),
        }
    }

    /// Deletes, or only counts, the old rows of the next range of pages, in a pass over the whole table. Returns `None` if another
    /// relay is reaping.
    pub async fn step(&mut self, only_counts: bool) -> Result<Option<Reaped>, PostgresFault> {
        let ((at, file), range) = (self.pass, self.range());
        let scanned = if only_counts {
            self.run("counting old rows", &self.statements.count_old, &self.transaction, at, range).await
        } else {
            self.reap_range(at, range).await
        };
        let scanned = match scanned {
            Err(fault) if self.narrows(&fault, range) => return Ok(Some(Reaped { rows: 0, more: true })),
            scanned => scanned?,
        };
        let Some(scanned) = scanned else { return Ok(None) };
        let rewritten = file.is_some_and(|file| file != scanned.file);
        let next = if rewritten { 0 } else { at.saturating_add(range) };
        self.pass = (next, Some(scanned.file));
        Ok(Some(Reaped { rows: scanned.old_rows, more: next < scanned.pages }))
    }

    /// The number of pages of the next range.
    fn range(&self) -> u32 {
        range_pages(self.pace.batch_rows).checked_shr(self.halvings).unwrap_or(0).max(1)
    }

    /// Whether a smaller range should be tried after this fault.
    fn narrows(&mut self, fault: &PostgresFault, range: u32) -> bool {
        let narrows = fault.kind == FaultKind::TimedOut && range > 1;
        if narrows {
            (self.halvings, self.others_since) = (self.halvings + 1, None);
        }
        narrows
    }

    /// Deletes the old rows of a range. Returns `None` if another relay is reaping.
    async fn reap_range(&mut self, at: u32, range: u32) -> Result<Option<ScannedRange>, PostgresFault> {
        let begun = Instant::now();
        let scanned = match self.run(DELETING, &self.statements.reap, &self.reaping, at, range).await {
            Err(fault) if fault.kind == FaultKind::Contended => {
                self.run(DELETING, &self.statements.reap_around_locks, &self.transaction, at, range).await
            }
            scanned => scanned,
        }?;
        // Ranges without old rows prove nothing.
        if scanned.is_some_and(|scanned| scanned.old_rows > 0) && begun.elapsed() < QUICK {
            self.halvings = self.halvings.saturating_sub(1);
        }
        Ok(scanned)
    }

    async fn run(
        &self,
        doing: &'static str,
        sql: &str,
        transaction: &ShortTransaction,
        at: u32,
        range: u32,
    ) -> Result<Option<ScannedRange>, PostgresFault> {
        let (from, to) = (format!("({at},0)"), format!("({},0)", at.saturating_add(range)));
        let (retention, table) = (self.pace.retention.as_secs_f64(), self.table.quoted());
        let params = params![from => TEXT, to => TEXT, retention => FLOAT8, table => TEXT];
        let rows = transaction.query(doing, sql, &params).await?;
        let Some(row) = rows.first() else { unreachable!("a SELECT without FROM is one row") };
        if !row.get::<_, bool>(4) {
            let reaper = self.table.render("{reaper}");
            let message = format!("{reaper} has no row. Fix: INSERT INTO {reaper} DEFAULT VALUES;");
            return Err(PostgresFault { kind: FaultKind::Refused, doing, message });
        }
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
}

impl Reap for PostgresReaper {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, PostgresFault> {
        self.pace = pace;
        let at = match self.rounds.at() {
            Some(at) => at,
            None => {
                let params = params![pace.retention.as_secs_f64() => FLOAT8];
                let rows = self.transaction.query(DELETING, &self.statements.edge, &params).await?;
                let page = rows.first().map_or(0, |row| row.get::<_, i64>(0));
                let page = u32::try_from(page).unwrap_or(0);
                self.rounds.found_edge(page);
                page
            }
        };
        let range = self.range();
        let scanned = match self.reap_range(at, range).await {
            Err(fault) if self.narrows(&fault, range) => return Ok(Reaped { rows: 0, more: true }),
            Err(fault) => {
                // The next attempt must not fail again because of the same page, or of a row to which another table refers.
                if matches!(fault.kind, FaultKind::Data | FaultKind::Refused | FaultKind::TimedOut) {
                    self.rounds.at = at.saturating_add(range);
                }
                return Err(fault);
            }
            Ok(scanned) => scanned,
        };
        let Some(scanned) = scanned else { return self.not_our_turn() };
        self.others_since = None;
        let more = self.rounds.advance(range, scanned, pace.interval, pace.retention);
        if !more {
            // Otherwise the ranges would stay small for as long as no row is old.
            self.halvings = self.halvings.saturating_sub(1);
        }
        Ok(Reaped { rows: scanned.old_rows, more })
    }
}

/// A row of the outbox has at least 80 bytes, so a page of 8 KiB has fewer rows than this.
const ROWS_PER_PAGE: usize = 100;
/// The maximum number of pages that one statement scans.
const RANGE_PAGES_MAX: u32 = 256;
/// The first part of a round ends after this many consecutive ranges without an old row.
const YOUNG_RANGES_MAX: u32 = 8;
/// How often the patrol scans the whole table within the retention, if [`PATROL_PAGES_MAX`] allows it.
const PATROLS_PER_RETENTION: u32 = 8;
/// The maximum number of pages that the patrol scans in a minute, on average: 512 MiB. With a short retention, it would otherwise scan a
/// large table in each round.
const PATROL_PAGES_MAX: u32 = 65_536;
/// The minimum number. A table of up to 32 MiB is scanned completely in a minute.
const PATROL_PAGES_MIN: u32 = 4_096;

/// The number of pages per statement, so that it deletes at most `batch_rows` rows.
fn range_pages(batch_rows: usize) -> u32 {
    let pages = u32::try_from(batch_rows / ROWS_PER_PAGE).unwrap_or(RANGE_PAGES_MAX);
    pages.clamp(1, RANGE_PAGES_MAX)
}

/// The current round, and where the next one starts.
///
/// Events are sent in about the order in which they are stored, so old rows are next to each other. A round starts at the *edge*,
/// where the previous round reached young rows, and continues until a few ranges have no old row. Then the *patrol* scans a share
/// of the whole table for other old rows: rows that were held, replayed or locked, or rows after a `sent_at` in the future.
#[derive(Debug, Default)]
struct Rounds {
    /// The file of the table. VACUUM FULL, CLUSTER and TRUNCATE create another one, in which the pages are different.
    file: Option<i64>,
    /// The page where the next round starts; unknown in a new file.
    edge: Option<u32>,
    /// The page where the next patrol starts.
    patrol: u32,
    part: Part,
    /// The page where the next range starts.
    at: u32,
    /// How many pages this part of the round has scanned.
    scanned_pages: u64,
    /// The start of the ranges without an old row that end at `at`.
    young_since: Option<u32>,
    young_ranges: u32,
    /// Whether this part of the round has deleted a row.
    deleted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Edge,
    /// The patrol, with the number of pages left to scan.
    Patrol(u32),
}

/// The result of a statement that scanned a range.
#[derive(Clone, Copy, Debug)]
struct ScannedRange {
    /// Old rows in the range, deleted or counted.
    old_rows: u64,
    pages: u32,
    file: i64,
}

impl Rounds {
    /// The page where the next range starts; `None` if the edge must be found first.
    fn at(&self) -> Option<u32> {
        self.edge.map(|_| self.at)
    }

    /// Sets the edge: the page of the first old row by id.
    fn found_edge(&mut self, page: u32) {
        self.edge = Some(page);
        self.begin(Part::Edge, page);
    }

    fn begin(&mut self, part: Part, at: u32) {
        (self.part, self.at, self.scanned_pages) = (part, at, 0);
        (self.young_since, self.young_ranges, self.deleted) = (None, 0, false);
    }

    /// Records the result for the range of `range` pages at [`Rounds::at`]. Returns whether the round has more ranges.
    fn advance(
        &mut self,
        range: u32,
        scanned: ScannedRange,
        interval: Duration,
        retention: Duration,
    ) -> bool {
        if self.file.replace(scanned.file).is_some_and(|file| file != scanned.file) {
            *self = Rounds { file: Some(scanned.file), ..Rounds::default() };
            return true;
        }
        // Vacuum may have truncated the table, so that the range is past its end.
        let inside = scanned.pages.saturating_sub(self.at).min(range);
        if scanned.old_rows > 0 {
            (self.young_since, self.young_ranges, self.deleted) = (None, 0, true);
        } else if inside > 0 {
            self.young_since.get_or_insert(self.at);
            self.young_ranges += 1;
        }
        self.scanned_pages += u64::from(inside);
        self.at = self.at.saturating_add(range);
        if self.at >= scanned.pages {
            self.at = 0;
        }
        let whole_table = self.scanned_pages >= u64::from(scanned.pages);
        match self.part {
            Part::Edge if !whole_table && self.young_ranges < YOUNG_RANGES_MAX => true,
            Part::Edge => {
                self.edge = Some(self.young_since.unwrap_or(self.at));
                let pages = if whole_table { 0 } else { patrol_pages(scanned.pages, interval, retention) };
                self.begin(Part::Patrol(pages), self.patrol);
                pages > 0 || self.end_round()
            }
            Part::Patrol(left) => {
                // Ranges with old rows do not count against the share.
                let left = if scanned.old_rows > 0 { left } else { left.saturating_sub(range) };
                self.part = Part::Patrol(left);
                (left > 0 && !whole_table) || self.end_round()
            }
        }
    }

    /// Always returns false: the round has no more ranges.
    fn end_round(&mut self) -> bool {
        if self.scanned_pages > 0 {
            self.patrol = self.at;
        }
        // The patrol found old rows here, so more rows here will become old next.
        if self.deleted
            && let Some(young_since) = self.young_since
        {
            self.edge = Some(young_since);
        }
        self.begin(Part::Edge, self.edge.unwrap_or(0));
        false
    }
}

/// How long the patrol takes for a table of this many pages.
pub fn patrol_time(pages: i64, retention: Duration) -> Duration {
    let seconds = pages.unsigned_abs() * 60 / u64::from(PATROL_PAGES_MAX);
    (retention / PATROLS_PER_RETENTION).max(Duration::from_secs(seconds))
}

/// The patrol's share of one round.
fn patrol_pages(pages: u32, interval: Duration, retention: Duration) -> u32 {
    let least = f64::from(PATROL_PAGES_MIN) * interval.as_secs_f64().min(60.0) / 60.0;
    let share = f64::from(pages) * interval.as_secs_f64()
        / patrol_time(pages.into(), retention).as_secs_f64().max(1.0);
    share.max(least).ceil() as u32
}

const ADVICE: &str = "Outbox rows are still deleted. If a privilege is missing, apply the output of `outbox-relay \
migrate --print-roles` again";

/// The table of a module, and the statements that reap it.
#[derive(Debug)]
struct Module {
    table: &'static str,
    functions: &'static [&'static str],
    reap: &'static str,
    count: &'static str,
    retention: fn(&Pace) -> Duration,
}

static MODULES: [Module; 3] = [
    Module {
        table: "processed_message",
        functions: &["inbox_reap"],
        reap: "SELECT :inbox_reap(make_interval(secs => $1), $2)",
        count: "SELECT count(*) FROM :processed_message WHERE processed_at < now() - make_interval(secs => $1)",
        retention: |pace| pace.inbox_retention,
    },
    Module {
        table: IDEMPOTENCY,
        functions: &["idempotency_reap", "idempotency_unfinished"],
        reap: "SELECT :idempotency_reap(make_interval(secs => $1), $2)",
        count: sql!("relay/count_idempotency"),
        retention: |pace| pace.idempotency_retention,
    },
    // Claims have their own time to live. The unused first parameter makes the three statements alike.
    Module {
        table: "once_key",
        functions: &["once_reap"],
        reap: "SELECT :once_reap($2) WHERE $1::float8 >= 0",
        count: "SELECT count(*) FROM :once_key WHERE expires_at <= now() AND $1::float8 >= 0",
        retention: |_| Duration::ZERO,
    },
];

const IDEMPOTENCY: &str = "idempotency_key";
const UNFINISHED: &str = "SELECT requests, oldest FROM :idempotency_unfinished(make_interval(secs => $1))";

/// The system catalogs need no privileges.
const FIND: &str = "
SELECT c.relname::text
FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE s.nspname = $1 AND c.relkind IN ('r', 'p') AND c.relname = ANY ($2)";

/// Unfinished requests past their retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// How many, counted up to 1,000.
    pub requests: i64,
    pub oldest: Option<SystemTime>,
}

impl PostgresReaper {
    /// Deletes all old rows of the modules. Returns the table of each installed module with the number of deleted rows. Skips a
    /// module that a relay is reaping.
    pub async fn reap_modules(&self) -> Result<Vec<(&'static str, u64)>, PostgresFault> {
        let mut reaped = Vec::new();
        for module in self.installed().await? {
            let mut of_table = 0;
            loop {
                let Reaped { rows, more } = self.reap_module(module).await?;
                of_table += rows;
                if !more {
                    break;
                }
            }
            reaped.push((module.table, of_table));
        }
        Ok(reaped)
    }

    /// The number of rows that [`PostgresReaper::reap_modules`] would delete.
    pub async fn count_modules(&self) -> Result<Vec<(&'static str, u64)>, PostgresFault> {
        let mut counted = Vec::new();
        for module in self.installed().await? {
            self.require_own(module).await?;
            let sql = Script::new(module.count, &self.table).render();
            let params = params![(module.retention)(&self.pace).as_secs_f64() => FLOAT8];
            let rows = self.transaction.query("counting old rows of a module", &sql, &params).await?;
            let old: i64 = rows.first().map_or(0, |row| row.get(0));
            counted.push((module.table, old.unsigned_abs()));
        }
        Ok(counted)
    }

    /// Unfinished requests past retention. Those with a committed phase are never deleted: only the application knows their
    /// outcome.
    pub async fn unfinished(&self) -> Result<Unfinished, PostgresFault> {
        let sql = Script::new(UNFINISHED, &self.table).render();
        let params = params![self.pace.idempotency_retention.as_secs_f64() => FLOAT8];
        let rows = self.transaction.query("counting unfinished requests", &sql, &params).await?;
        let row = rows.first();
        Ok(Unfinished { requests: row.map_or(0, |row| row.get(0)), oldest: row.and_then(|row| row.get(1)) })
    }

    /// Deletes one batch of a module.
    async fn reap_module(&self, module: &Module) -> Result<Reaped, PostgresFault> {
        self.require_own(module).await?;
        let batch_rows = i32::try_from(self.pace.batch_rows).unwrap_or(i32::MAX);
        let params = params![(module.retention)(&self.pace).as_secs_f64() => FLOAT8, batch_rows => INT4];
        let sql = Script::new(module.reap, &self.table).render();
        let rows = self.transaction.query("deleting old rows of a module", &sql, &params).await?;
        let deleted: i32 = rows.first().map_or(0, |row| row.get(0));
        // A batch of a partitioned table may delete more than it asked for.
        Ok(Reaped { rows: u64::from(deleted.unsigned_abs()), more: deleted >= batch_rows })
    }

    /// Another role could have created them before the module is installed.
    async fn require_own(&self, module: &Module) -> Result<(), PostgresFault> {
        let names: Vec<String> =
            [module.table].iter().chain(module.functions).map(|&name| name.to_owned()).collect();
        relations::require_own(&self.transaction, "checking the owner of a module", &self.table, &names).await
    }

    async fn installed(&self) -> Result<Vec<&'static Module>, PostgresFault> {
        let tables = MODULES.each_ref().map(|module| module.table);
        let params = params![self.table.schema() => TEXT, &tables[..] => TEXT_ARRAY];
        let rows = self.transaction.query("looking for modules", FIND, &params).await?;
        let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        Ok(MODULES.iter().filter(|module| found.contains(&module.table)).collect())
    }
}

/// Reaps the outbox of a running relay, then the modules. A module that cannot be reaped does not prevent the outbox from being
/// reaped.
pub struct RelayReaper {
    reaper: PostgresReaper,
    /// Whether the outbox is finished for this round.
    at_modules: bool,
    /// Why the outbox could not be reaped in this round, until the modules are reaped too.
    fault: Option<PostgresFault>,
    /// The modules that are left in this round.
    remaining: VecDeque<&'static Module>,
    outage: Availability,
    /// The number of unfinished requests in the latest log line.
    reported: i64,
    stats: Arc<Stats>,
}

impl RelayReaper {
    pub fn new(reaper: PostgresReaper, stats: Arc<Stats>) -> RelayReaper {
        let outage = Availability::new("reaper of the modules", "reaper_failed");
        let outage = outage.described("failing", "working again");
        RelayReaper {
            reaper,
            at_modules: false,
            fault: None,
            remaining: VecDeque::new(),
            outage,
            reported: 0,
            stats,
        }
    }

    /// Deletes one batch of a module, which stays one of the remaining ones if there is more.
    async fn reap_module(&mut self, module: &'static Module) -> Result<(), PostgresFault> {
        if self.reaper.reap_module(module).await?.more {
            self.remaining.push_front(module);
        } else if module.table == IDEMPOTENCY {
            let unfinished = self.reaper.unfinished().await?;
            self.report(unfinished);
        }
        Ok(())
    }

    /// Logs once, and again when the number changes.
    fn report(&mut self, unfinished: Unfinished) {
        let Unfinished { requests, oldest } = unfinished;
        self.stats.unfinished_requests.set(requests);
        if requests == self.reported {
            return;
        }
        self.reported = requests;
        let oldest = oldest.map(text::time);
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
                self.reaper.table.render("{idempotency_key}")
            );
        }
    }

    /// Notes whether a module was reaped, or the installed ones were found.
    fn note(&self, module: Option<&Module>, done: Result<(), PostgresFault>) {
        let table = module.map(|module| module.table);
        let party = MODULES.iter().position(|module| Some(module.table) == table).unwrap_or(MODULES.len());
        match done {
            Ok(()) => self.outage.worked(party),
            // The scout reports it.
            Err(fault) if fault.kind == FaultKind::Unavailable => tracing::debug!("{fault}"),
            Err(fault) => {
                self.stats.reaper_faults.inc();
                self.outage.failed(party, &fault, ADVICE);
            }
        }
    }
}

impl Reap for RelayReaper {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, PostgresFault> {
        if !self.at_modules {
            let reaped = self.reaper.reap_once(pace).await;
            self.at_modules = reaped.as_ref().map_or(true, |reaped| !reaped.more);
            return match reaped {
                Err(fault) if fault.kind != FaultKind::Unavailable => {
                    self.fault = Some(fault);
                    Ok(Reaped { rows: 0, more: true })
                }
                reaped => reaped.map(|Reaped { rows, .. }| Reaped { rows, more: true }),
            };
        }
        if self.remaining.is_empty() {
            let installed = self.reaper.installed().await;
            let installed = installed.map(|modules| self.remaining = modules.into());
            self.note(None, installed);
        }
        if let Some(module) = self.remaining.pop_front() {
            let reaped = self.reap_module(module).await;
            self.note(Some(module), reaped);
        }
        self.at_modules = !self.remaining.is_empty();
        match self.fault.take_if(|_| !self.at_modules) {
            Some(fault) => Err(fault),
            None => Ok(Reaped { rows: 0, more: self.at_modules }), // only rows of the outbox are counted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    const RANGE: u32 = 256;
    const RANGES: u32 = 1_000;

    /// A table in which each range has old rows or not.
    struct Table {
        old: Vec<bool>,
        rounds: Rounds,
        scanned_ranges: u32,
    }

    impl Table {
        fn new(old: impl Fn(u32) -> bool) -> Table {
            let mut rounds = Rounds::default();
            rounds.found_edge(0);
            Table { old: (0..RANGES).map(old).collect(), rounds, scanned_ranges: 0 }
        }

        fn round(&mut self) {
            loop {
                let range = self.rounds.at().unwrap() / RANGE;
                let old_rows = u64::from(std::mem::take(&mut self.old[range as usize]));
                self.scanned_ranges += 1;
                let scanned = ScannedRange { old_rows, pages: RANGES * RANGE, file: 1 };
                if !self.rounds.advance(RANGE, scanned, MINUTE, DAY) {
                    return;
                }
            }
        }

        fn old_ranges(&self) -> usize {
            self.old.iter().filter(|old| **old).count()
        }
    }

    #[test]
    fn rows_that_become_old_at_the_edge_are_deleted_by_the_next_round() {
        let mut table = Table::new(|range| range < 10);
        table.round();
        assert_eq!(table.old_ranges(), 0);
        for range in 10..500 {
            table.old[range] = true;
            table.round();
            assert_eq!(table.old_ranges(), 0, "range {range} was left");
        }
    }

    #[test]
    fn young_rows_before_old_rows_do_not_stop_the_reaper() {
        let mut table = Table::new(|range| (5..500).contains(&range));
        table.round();
        assert_eq!(table.old_ranges(), 0, "a round skips a few young ranges");

        let mut table = Table::new(|range| range >= 500);
        let mut rounds = 0;
        while table.old_ranges() > 0 {
            table.round();
            rounds += 1;
        }
        let share = patrol_pages(RANGES * RANGE, MINUTE, DAY) / RANGE;
        assert!(rounds <= RANGES / share + 1, "{rounds} rounds: the patrol does not stop at young ranges");
        table.old[0] = true;
        table.round();
        assert_eq!(table.old_ranges(), 0, "a round wraps around at the end of the table");
    }

    #[test]
    fn a_round_without_old_rows_scans_a_bounded_part_of_the_table() {
        let mut table = Table::new(|_| false);
        table.round();
        assert!(
            table.scanned_ranges <= YOUNG_RANGES_MAX + PATROL_PAGES_MIN / RANGE,
            "{}",
            table.scanned_ranges
        );
        for _ in 0..RANGES {
            table.round();
        }
        assert!(table.scanned_ranges < RANGES * 30, "{}", table.scanned_ranges);
    }

    #[test]
    fn a_short_retention_does_not_scan_a_large_table_in_each_round() {
        let (pages, second) = (40 * PATROL_PAGES_MAX, Duration::from_secs(1));
        assert_eq!(patrol_time(pages.into(), 5 * MINUTE), 40 * MINUTE);
        assert_eq!(patrol_pages(pages, MINUTE, 5 * MINUTE), PATROL_PAGES_MAX);
        assert_eq!(patrol_pages(pages, second, MINUTE), PATROL_PAGES_MAX.div_ceil(60));
        assert_eq!(patrol_time(pages.into(), DAY), DAY / 8);
        assert_eq!(patrol_pages(pages, MINUTE, DAY), pages.div_ceil(180));
        assert_eq!(patrol_pages(100, second, DAY), PATROL_PAGES_MIN.div_ceil(60));
    }

    #[test]
    fn a_rewritten_table_is_scanned_from_a_new_edge() {
        let mut rounds = Rounds::default();
        rounds.found_edge(700);
        assert!(rounds.advance(RANGE, ScannedRange { old_rows: 5, pages: 9_000, file: 1 }, MINUTE, DAY));
        assert_eq!(rounds.at(), Some(700 + RANGE));
        assert!(rounds.advance(RANGE, ScannedRange { old_rows: 0, pages: 100, file: 2 }, MINUTE, DAY));
        assert_eq!(rounds.at(), None, "the edge must be found again");
    }

    #[test]
    fn a_round_past_the_end_of_a_truncated_table_continues_at_its_start() {
        let mut rounds = Rounds::default();
        rounds.found_edge(700);
        assert!(rounds.advance(RANGE, ScannedRange { old_rows: 0, pages: 600, file: 1 }, MINUTE, DAY));
        assert_eq!(rounds.at(), Some(0));
        rounds.found_edge(700);
        assert!(!rounds.advance(RANGE, ScannedRange { old_rows: 0, pages: 0, file: 1 }, MINUTE, DAY));
        assert_eq!(rounds.at(), Some(0));
    }

    #[test]
    fn a_statement_deletes_at_most_one_batch() {
        assert_eq!(range_pages(5_000), 50);
        assert_eq!((range_pages(1), range_pages(100_000)), (1, RANGE_PAGES_MAX));
    }
}
