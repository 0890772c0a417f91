//! `outbox-relay blocked-keys dead-letter`.

use super::act::{Act, Chosen, act};
use crate::cli::exit::Failed;
use crate::postgres::access::grants::UNBLOCK_RIGHTS;
use clap::Args;

const DEAD_LETTER: Act = Act {
    name: "dead-letter",
    done: "moved to the dead letters",
    foreseen: "would be moved to the dead letters",
    rights: UNBLOCK_RIGHTS,
};

/// Move the refused events to the dead letters, and let the others of their keys flow.
#[derive(Debug, Args)]
#[command(after_help = "\
The event moves whole, and the block is lifted, in one transaction; the events behind it flow, in order, without it. A \
block whose event is gone (sent or deleted by hand) is just lifted. `outbox-relay dead-letters` shows the event from then \
on.

Examples:
  outbox-relay blocked-keys dead-letter --config config.toml --id 1042
  outbox-relay blocked-keys dead-letter --config config.toml --older-than 2days --dry-run

Exit codes: 0 done, even if nothing fits, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration, the \
grants or the schema have to be mended.")]
pub struct DeadLetter {
    #[command(flatten)]
    chosen: Chosen,
}

impl DeadLetter {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        act(&self.chosen, &DEAD_LETTER, async |keys, selection, batch| {
            keys.dead_letter(selection, batch).await
        })
    }
}
