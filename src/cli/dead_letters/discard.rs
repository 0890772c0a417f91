//! `outbox-relay dead-letters discard`.

use super::act::{Act, act};
use crate::cli::ConfigFile;
use crate::cli::exit::Failed;
use crate::cli::selection::{Deed, Filters};
use crate::postgres::access::grants::DISCARD_RIGHTS;
use crate::postgres::operate::dead_letters::Which;
use clap::Args;

const DISCARD: Act = Act { name: "discard", participle: "discarded", rights: DISCARD_RIGHTS };

/// Delete dead letters.
#[derive(Debug, Args)]
#[command(after_help = "\
What a discarded dead letter held is gone for good. That it was there, and who discarded it, stays in the history. \
Requeueing keeps the dead letter: discard those with --requeued once their events have arrived.

Examples:
  outbox-relay dead-letters discard --config config.toml --older-than 90days --dry-run
  outbox-relay dead-letters discard --config config.toml --requeued

Exit codes: 0 done, even if nothing fits, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration, the \
grants or the schema have to be mended.")]
pub struct Discard {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    /// Only those that were requeued.
    #[arg(long, help_heading = "Which ones")]
    requeued: bool,
    #[command(flatten)]
    deed: Deed,
}

impl Discard {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let which = Which { selection: self.filters.selection(), requeued: self.requeued.then_some(true) };
        act(&config, &DISCARD, &which, &self.deed, async |letters, batch| {
            letters.discard(&which, batch).await
        })
    }
}
