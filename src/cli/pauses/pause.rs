//! `outbox-relay pause`.

use super::{Selector, name, open};
use crate::cli::exit::Failed;
use crate::cli::{ConfigFile, block_on, one_shot, output};
use crate::postgres::access::grants::PAUSE_RIGHTS;
use clap::Args;

/// Keep everything, a topic or a key from being published, until `resume`.
#[derive(Debug, Args)]
#[command(after_help = "\
The events wait in the outbox, in order; all others flow. All relays see it with their next claim. What they have claimed \
already is published and settled. The pause stands in the database: it outlives every relay, and only `resume` ends it. \
Applications go on inserting. `status` shows what is paused, since when, by whom and why.

A key is one of an aggregate type; if [outbox] topic is the same for all types, the key is paused whatever the type, since its \
events have one order. A held topic that is paused stays held, and is not tried meanwhile.

Examples:
  outbox-relay pause --config config.toml --reason \"consumers are migrated\"
  outbox-relay pause --config config.toml --topic events.order
  outbox-relay pause --config config.toml --key order 42

Exit codes: 0 it is paused, also if it was before, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration, \
the grants or the schema have to be mended.")]
pub struct Pause {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    selector: Selector,
    /// Why, for whoever looks at `status`, the log or the history.
    #[arg(long, value_name = "TEXT", help_heading = None::<&str>)]
    reason: Option<String>,
}

impl Pause {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let scope = self.selector.scope(&config)?;
        let begun = block_on(async {
            let pauses = open(&config, PAUSE_RIGHTS).await?;
            pauses.pause(&scope, self.reason.as_deref()).await.map_err(one_shot::fault)
        })??;
        let done = if begun { "paused" } else { "was paused already" };
        output::line(&format!("{}: {} {done}", config.outbox.table, name(&scope))).map(|_| ())
    }
}
