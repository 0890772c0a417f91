//! `outbox-relay dead-letters requeue`.

use super::act::{Act, act};
use crate::cli::ConfigFile;
use crate::cli::exit::Failed;
use crate::cli::selection::{Deed, Filters};
use crate::postgres::access::grants::REQUEUE_RIGHTS;
use crate::postgres::operate::dead_letters::Which;
use clap::Args;

const REQUEUE: Act = Act { name: "requeue", participle: "requeued", rights: REQUEUE_RIGHTS };

/// Put dead letters back into the outbox, to be published again.
#[derive(Debug, Args)]
#[command(after_help = "\
Each event goes back as a new row of the outbox: the same event_id, type, key, headers, created_at and payload. The dead \
letter stays and is marked as requeued; those that are marked are left out, unless you say --again. Two operators at once \
requeue each one once.

Order: a requeued event comes BEHIND the later events of its key, which were published when it became a dead letter. \
Consumers de-duplicate by event_id, and have to tell an event that is older than what they know, as by the version of \
its aggregate. Where that is not possible, discard it, and let the application announce the present state anew; or run \
with [outbox] on_rejected = \"block-key\", which keeps the order.

First mend what it was refused for, such as the topic's max.message.bytes: otherwise it becomes a dead letter again.

Examples:
  outbox-relay dead-letters requeue --config config.toml --topic events.order --dry-run
  outbox-relay dead-letters requeue --config config.toml --id 17,18
  outbox-relay dead-letters requeue --config config.toml --all --limit 10

Exit codes: 0 done, even if nothing fits, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration, the \
grants or the schema have to be mended.")]
pub struct Requeue {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    deed: Deed,
    /// Also those that were requeued before.
    #[arg(long)]
    again: bool,
}

impl Requeue {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let requeued = if self.again { None } else { Some(false) };
        let which = Which { selection: self.filters.selection(), requeued };
        act(&config, &REQUEUE, &which, &self.deed, async |letters, batch| {
            letters.requeue(&which, batch).await
        })
    }
}
