//! `outbox-relay reap`: deletes old rows on request.

use super::exit::Failed;
use super::one_shot;
use super::terminal::output;
use super::{ConfigFile, block_on};
use crate::config::Config;
use clap::Args;
use postgres::access::grants::REAP_PRIVILEGES;
use postgres::access::module_grants::reap_privileges;
use postgres::cycle::reap::PostgresReaper;
use postgres::cycle::reap::modules::{ModulesReaper, Unfinished};
use relay::failure::PostgresFault;
use relay::health::stats::Stats;
use settings::text::span;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long to wait for a relay that is deleting rows.
const TURN_WITHIN: Duration = Duration::from_secs(30);
const TURN_AGAIN: Duration = Duration::from_millis(50);

/// Delete sent rows past retention.
#[derive(Debug, Args)]
#[command(after_help = "\
A running relay does this by itself, unless [reaper] enabled = false. This command deletes the sent rows that are \
past retention, once, in batches of [reaper] batch_size. Each batch has its own transaction and skips locked rows. \
Unsent \
rows are never deleted. The command also deletes old rows of the inbox, idempotency and once modules. Unfinished \
requests of the idempotency module that have a committed phase, or are younger than 30 days, are kept and reported. You can interrupt the command safely.

Examples:
  outbox-relay reap --config config.toml --dry-run
  OUTBOX_RELAY__REAPER__RETENTION=1h outbox-relay reap --config config.toml

Exit codes: 0 success, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid configuration or schema, or missing \
privileges.")]
pub(crate) struct Reap {
    #[command(flatten)]
    config: ConfigFile,
    /// Count the rows without deleting them.
    #[arg(long)]
    dry_run: bool,
}

impl Reap {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let lines = block_on(async {
            let database = one_shot::database(&config)?;
            let privileges = [REAP_PRIVILEGES, &reap_privileges()].concat();
            one_shot::allowed(&config, &database, &privileges).await?;
            let reaper = PostgresReaper::new(
                database.clone(),
                config.outbox.table.clone(),
                config.reaper.retention,
                config.reaper.batch_size,
            );
            let rows = if self.dry_run { count(reaper).await } else { reap(reaper).await }?;
            let modules = ModulesReaper::new(
                database,
                config.outbox.table.clone(),
                config.pace(),
                Arc::new(Stats::new()),
            );
            let of_modules = self.of_modules(&config, modules).await.map_err(one_shot::fault)?;
            Ok::<_, Failed>([vec![self.describe(&config, rows)], of_modules].concat())
        })??;
        output::print(format!("{}\n", lines.join("\n")).as_bytes()).map(|_| ())
    }

    /// One line for each installed module.
    async fn of_modules(
        &self,
        config: &Config,
        mut modules: ModulesReaper,
    ) -> Result<Vec<String>, PostgresFault> {
        let tables = if self.dry_run { modules.count_all().await } else { modules.reap_all().await }?;
        let mut lines = Vec::new();
        for (table, rows) in tables {
            let name = config.outbox.table.display_sibling(table);
            let ago = |retention| format!("more than {} ago", span(retention));
            let old = match table {
                "processed_message" => format!("processed {}", ago(config.reaper.inbox_retention)),
                "idempotency_key" => format!("finished {}", ago(config.reaper.idempotency_retention)),
                _ => "expired".to_owned(),
            };
            lines.push(format!("{name}: {} {}, {old}", output::counted(rows, "row"), self.verb()));
            if table == "idempotency_key" {
                let Unfinished { requests, .. } = modules.unfinished().await?;
                if requests > 0 {
                    lines.push(format!(
                        "{name}: kept {} that began {}. Complete them in the application.",
                        output::counted(requests.unsigned_abs(), "unfinished request"),
                        ago(config.reaper.idempotency_retention)
                    ));
                }
            }
        }
        Ok(lines)
    }

    fn describe(&self, config: &Config, rows: u64) -> String {
        let (table, retention) = (&config.outbox.table, span(config.reaper.retention));
        let rows = output::counted(rows, "row");
        format!("{table}: {rows} {}, sent more than {retention} ago", self.verb())
    }

    fn verb(&self) -> &'static str {
        if self.dry_run { "would be deleted" } else { "deleted" }
    }
}

async fn count(mut reaper: PostgresReaper) -> Result<u64, Failed> {
    let mut rows = 0;
    loop {
        let step = reaper.count_step().await.map_err(one_shot::fault)?;
        rows += step.rows;
        if !step.more {
            return Ok(rows);
        }
    }
}

async fn reap(mut reaper: PostgresReaper) -> Result<u64, Failed> {
    let mut rows = 0;
    let mut turn_by = Instant::now() + TURN_WITHIN;
    loop {
        let step = reaper.reap_step().await.map_err(one_shot::fault)?;
        rows += step.rows;
        if step.ours && !step.more {
            return Ok(rows);
        }
        if step.ours {
            turn_by = Instant::now() + TURN_WITHIN;
        } else if Instant::now() < turn_by {
            sleep(TURN_AGAIN).await;
        } else {
            let rows = output::counted(rows, "row");
            return Err(Failed::Failure(anyhow::anyhow!(
                "A relay is deleting old rows. This command deleted {rows}. Try again later, or leave \
                 the rest to the relay."
            )));
        }
    }
}
