//! `outbox-relay resume`.

use super::{Selector, name, open};
use crate::cli::exit::Failed;
use crate::cli::{ConfigFile, block_on, one_shot, output};
use crate::postgres::access::grants::RESUME_RIGHTS;
use crate::postgres::operate::pauses::{PausedScope, PostgresPauses};
use clap::Args;

/// What stays paused is named up to this many.
const NAMED_MAX: i64 = 10;

/// Let flow what `pause` has stopped.
#[derive(Debug, Args)]
#[command(after_help = "\
Ends the pause that the same words began: without --topic and --key that of everything. Each pause stands for itself: a \
topic that was paused before everything was, stays paused. --all ends all of them. The events that waited flow in order.

Examples:
  outbox-relay resume --config config.toml
  outbox-relay resume --config config.toml --topic events.order
  outbox-relay resume --config config.toml --all

Exit codes: 0 it flows, also if it was not paused, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration, \
the grants or the schema have to be mended.")]
pub struct Resume {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    selector: Selector,
    /// Every pause, whatever it is of.
    #[arg(long, conflicts_with_all = ["topic", "key"])]
    all: bool,
}

impl Resume {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let scope = self.selector.scope(&config)?;
        let (done, left) = block_on(async {
            let pauses = open(&config, RESUME_RIGHTS).await?;
            let done = if self.all {
                let ended = pauses.resume_all().await.map_err(one_shot::fault)?;
                output::counted(ended, "pause") + " ended"
            } else {
                let ended = pauses.resume(&scope).await.map_err(one_shot::fault)?;
                format!("{} {}", name(&scope), if ended { "resumed" } else { "was not paused" })
            };
            left(&pauses).await.map(|left| (done, left))
        })??;
        output::line(&format!("{}: {done}", config.outbox.table))?;
        for pause in &left {
            output::line(&format!("still paused: {}", name(&pause.scope)))?;
        }
        Ok(())
    }
}

async fn left(pauses: &PostgresPauses) -> Result<Vec<PausedScope>, Failed> {
    pauses.list(NAMED_MAX).await.map_err(one_shot::fault)
}
