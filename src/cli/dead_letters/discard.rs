//! `outbox-relay dead-letters discard`.

use super::act::{Action, act};
use crate::cli::ConfigFile;
use crate::cli::arguments::selection::{ChangeOptions, Filters};
use crate::cli::exit::Failed;
use clap::Args;
use postgres::access::grants::DISCARD_PRIVILEGES;
use postgres::operate::rejected::{Filter, PostgresDeadLetters};

const DISCARD: Action =
    Action { name: "discard", verb: "Discard", participle: "discarded", privileges: DISCARD_PRIVILEGES };

/// Delete dead letters.
#[derive(Debug, Args)]
#[command(after_help = "\
Discarding deletes a dead letter permanently. The history still shows the event ID and who discarded it. Requeueing \
keeps the dead letter: use --requeued to discard requeued dead letters once their events have been published.

Examples:
  outbox-relay dead-letters discard --config config.toml --older-than 90days --dry-run
  outbox-relay dead-letters discard --config config.toml --requeued

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct Discard {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    /// Only dead letters that were requeued.
    #[arg(long, help_heading = "Filters")]
    requeued: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Discard {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let filter = Filter { selection: self.filters.selection(), requeued: self.requeued.then_some(true) };
        let check = async |_: &PostgresDeadLetters, _| Ok(());
        act(&config, &DISCARD, &filter, &self.options, check, async |letters, batch| {
            letters.discard(&filter, batch).await
        })
    }
}
