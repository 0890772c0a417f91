//! `outbox-relay reap`: deletes old rows by hand.

use super::exit::Failed;
use super::{ConfigFile, block_on, one_shot};
use crate::config::Config;
use crate::postgres::grants::REAP_RIGHTS;
use crate::postgres::reap::PostgresReaper;
use clap::Args;
use humantime::format_duration;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a relay that is deleting just then is waited for.
const TURN_WITHIN: Duration = Duration::from_secs(30);
const TURN_AGAIN: Duration = Duration::from_millis(50);

/// Delete the rows that were sent longer ago than the configured retention.
#[derive(Debug, Args)]
#[command(after_help = "\
A running relay does this by itself, unless [reaper] enabled = false; this does it once, to the end of the table. \
Rows go in batches of [reaper] batch_size, each in its own transaction, round rows that somebody has locked; an unsent \
row is never deleted. Breaking it off is harmless.

Examples:
  outbox-relay reap --config config.toml --dry-run
  OUTBOX_RELAY__REAPER__RETENTION=1h outbox-relay reap --config config.toml

Exit codes: 0 done, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration or the schema has to be \
mended.")]
pub struct Reap {
    #[command(flatten)]
    config: ConfigFile,
    /// Count the rows, and delete none.
    #[arg(long)]
    dry_run: bool,
}

impl Reap {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let rows = block_on(async {
            let database = one_shot::database(&config)?;
            one_shot::allowed(&config, &database, REAP_RIGHTS).await?;
            let reaper = PostgresReaper::new(
                database,
                config.outbox.table.clone(),
                config.reaper.retention,
                config.reaper.batch_size,
            );
            if self.dry_run { count(reaper).await } else { reap(reaper).await }
        })??;
        println!("{}", describe(&config, rows, self.dry_run));
        Ok(())
    }
}

fn describe(config: &Config, rows: u64, dry_run: bool) -> String {
    let verb = if dry_run { "would be deleted" } else { "deleted" };
    let (table, retention) = (&config.outbox.table, format_duration(config.reaper.retention));
    format!("{table}: {rows} rows {verb}, sent more than {retention} ago")
}

async fn count(mut reaper: PostgresReaper) -> Result<u64, Failed> {
    let mut rows = 0;
    while let Some(old) = reaper.count_slice().await.map_err(one_shot::fault)? {
        rows += old;
    }
    Ok(rows)
}

async fn reap(mut reaper: PostgresReaper) -> Result<u64, Failed> {
    let mut rows = 0;
    let mut turn_by = Instant::now() + TURN_WITHIN;
    loop {
        let slice = reaper.reap_slice().await.map_err(one_shot::fault)?;
        rows += slice.deleted;
        if slice.ours && !slice.full {
            return Ok(rows);
        }
        if slice.ours {
            turn_by = Instant::now() + TURN_WITHIN;
        } else if Instant::now() < turn_by {
            sleep(TURN_AGAIN).await;
        } else {
            return Err(Failed::Failure(anyhow::anyhow!(
                "a relay is deleting old rows all the time; {rows} rows were deleted here. Try again, or leave it to the \
                 relay"
            )));
        }
    }
}
