//! `outbox-relay resume`.

use super::{Selector, open};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::output;
use crate::cli::{ConfigFile, block_on};
use clap::Args;
use postgres::access::grants::RESUME_PRIVILEGES;
use postgres::operate::pauses::{PausedScope, PostgresPauses};

/// The maximum number of remaining pauses to list.
const NAMED_MAX: i64 = 10;

/// Resume publishing.
#[derive(Debug, Args)]
#[command(after_help = "\
Removes the pause with the given scope. Without --topic or --key, it removes the pause on everything. Pauses are \
independent: resuming everything does not resume a topic that was paused separately. --all removes every pause. \
Waiting events are then published in order.

Examples:
  outbox-relay resume --config config.toml
  outbox-relay resume --config config.toml --topic events.order
  outbox-relay resume --config config.toml --all

Exit codes: 0 success, even if nothing was paused, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid configuration or schema, \
or missing privileges.")]
pub(crate) struct Resume {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    selector: Selector,
    /// Remove every pause.
    #[arg(long, conflicts_with_all = ["topic", "key"])]
    all: bool,
}

impl Resume {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let scope = self.selector.scope();
        let (done, left) = block_on(async {
            let pauses = open(&config, RESUME_PRIVILEGES).await?;
            let done = if self.all {
                let ended = pauses.resume_all().await.map_err(one_shot::fault)?;
                output::counted(ended, "pause") + " ended"
            } else {
                let ended = pauses.resume(&scope).await.map_err(one_shot::fault)?;
                format!("{} {}", scope.name(), if ended { "resumed" } else { "was not paused" })
            };
            left(&pauses).await.map(|left| (done, left))
        })??;
        output::line(&format!("{}: {done}", config.outbox.table))?;
        for pause in &left {
            output::line(&format!("still paused: {}", pause.scope.name()))?;
        }
        Ok(())
    }
}

async fn left(pauses: &PostgresPauses) -> Result<Vec<PausedScope>, Failed> {
    pauses.list(NAMED_MAX).await.map_err(one_shot::fault)
}
