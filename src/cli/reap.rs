//! `outbox-relay reap`: deletes old rows on request.

use super::failed::Failed;
use super::frame::{ConfigFile, on_outbox};
use super::output::{self, counted};
use crate::config::Config;
use clap::Args;
use postgres::access::grants::{REAP_PRIVILEGES, reap_privileges};
use postgres::cycle::reap::{PostgresReaper, Unfinished};
use relay::failure::PostgresFault;
use relay::reaper::Reaped;
use settings::text::span;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long to wait for a relay that is deleting rows.
const TURN_WITHIN: Duration = Duration::from_secs(30);
const TURN_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/reap.txt").trim_ascii_end())]
pub(crate) struct Reap {
    /// Count the rows without deleting them.
    #[arg(long)]
    dry_run: bool,
}

impl Reap {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load_for_database()?;
        let privileges = [REAP_PRIVILEGES, &reap_privileges()].concat();
        on_outbox(&config, &privileges, async |outbox| {
            let table = outbox.table();
            let mut reaper = PostgresReaper::new(outbox.database, table.clone(), config.pace());
            let rows = reap(&mut reaper, self.dry_run).await?;
            let sent = format!(
                "{table}: {} {}, sent more than {} ago",
                counted(rows, "row"),
                self.verb(),
                span(config.reaper.retention)
            );
            output::text(sent + "\n")?; // also if a module cannot be cleaned
            let lines = self.of_modules(&config, &reaper).await?;
            if lines.is_empty() { Ok(()) } else { output::text(lines.join("\n") + "\n") }
        })
    }

    /// One line for each installed module.
    async fn of_modules(
        &self,
        config: &Config,
        reaper: &PostgresReaper,
    ) -> Result<Vec<String>, PostgresFault> {
        let tables = if self.dry_run { reaper.count_modules().await } else { reaper.reap_modules().await }?;
        let mut lines = Vec::new();
        for (table, rows) in tables {
            let name = config.outbox.table.display_sibling(table);
            let ago = |retention| format!("more than {} ago", span(retention));
            let old = match table {
                "processed_message" => format!("processed {}", ago(config.reaper.inbox_retention)),
                "idempotency_key" => format!("finished {}", ago(config.reaper.idempotency_retention)),
                _ => "expired".to_owned(),
            };
            lines.push(format!("{name}: {} {}, {old}", counted(rows, "row"), self.verb()));
            if table == "idempotency_key" {
                let Unfinished { requests, .. } = reaper.unfinished().await?;
                if requests > 0 {
                    lines.push(format!(
                        "{name}: kept {} that began {}. Complete them in the application.",
                        counted(requests.unsigned_abs(), "unfinished request"),
                        ago(config.reaper.idempotency_retention)
                    ));
                }
            }
        }
        Ok(lines)
    }

    fn verb(&self) -> &'static str {
        if self.dry_run { "would be deleted" } else { "deleted" }
    }
}

/// Deletes the old rows, or only counts them.
async fn reap(reaper: &mut PostgresReaper, only_counts: bool) -> Result<u64, Failed> {
    let mut rows = 0;
    let mut turn_by = Instant::now() + TURN_WITHIN;
    loop {
        match reaper.step(only_counts).await? {
            Some(Reaped { rows: of_step, more }) => {
                rows += of_step;
                if !more {
                    return Ok(rows);
                }
                turn_by = Instant::now() + TURN_WITHIN;
            }
            None if Instant::now() < turn_by => sleep(TURN_AGAIN).await,
            None => {
                return Err(Failed::failure(format!(
                    "A relay is deleting old rows. This command deleted {}. Try again later, or leave the rest to the relay.",
                    counted(rows, "row")
                )));
            }
        }
    }
}
