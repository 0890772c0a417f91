//! `outbox-relay dead-letters requeue`.

use super::act::{Action, act};
use crate::cli::ConfigFile;
use crate::cli::arguments::selection::{ChangeOptions, Filters};
use crate::cli::exit::Failed;
use crate::postgres::access::grants::REQUEUE_PRIVILEGES;
use crate::postgres::operate::dead_letters::Filter;
use clap::Args;

const REQUEUE: Action = Action {
    name: "requeue",
    verb: "Requeue",
    participle: "requeued",
    privileges: REQUEUE_PRIVILEGES,
    inserts: true,
};

/// Put dead letters back into the outbox.
#[derive(Debug, Args)]
#[command(after_help = "\
Fix the cause of the rejection first, such as the topic's max.message.bytes. Otherwise the event becomes a dead letter \
again.

Each event becomes a new outbox row with the same event_id, type, key, headers, created_at and payload. The dead \
letter is kept and marked as requeued. Requeued dead letters are skipped unless you pass --again. If two operators run \
the command at the same time, each event is requeued once.

Order: a requeued event arrives AFTER later events of its key that were published in the meantime. \
Consumers must deduplicate by event_id and recognize outdated events, for example by the version of the aggregate. If \
they cannot, discard the event and have the application publish the current state. To keep the order, use [outbox] \
on_rejected = \"block-key\".

Examples:
  outbox-relay dead-letters requeue --config config.toml --topic events.order --dry-run
  outbox-relay dead-letters requeue --config config.toml --id 17,18
  outbox-relay dead-letters requeue --config config.toml --all --limit 10

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct Requeue {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ChangeOptions,
    /// Include dead letters that were already requeued.
    #[arg(long)]
    again: bool,
    /// Only dead letters that were not requeued. This is the default.
    #[arg(long, conflicts_with = "again")]
    not_requeued: bool,
}

impl Requeue {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let requeued = if self.again { None } else { Some(false) };
        let filter = Filter { selection: self.filters.selection(), requeued };
        act(&config, &REQUEUE, &filter, &self.options, async |letters, batch| {
            letters.requeue(&filter, batch).await
        })
    }
}
