//! `outbox-relay blocked-keys dead-letter`.

use super::act::{Action, Chosen, act};
use crate::cli::exit::Failed;
use clap::Args;
use postgres::access::grants::UNBLOCK_PRIVILEGES;

const DEAD_LETTER: Action = Action {
    name: "dead-letter",
    done: "moved to the dead letters",
    preview: "would be moved to the dead letters",
    privileges: UNBLOCK_PRIVILEGES,
};

/// Move rejected events to the dead letters.
#[derive(Debug, Args)]
#[command(after_help = "\
Moves each rejected event to the dead letters and unblocks its key, in one transaction. Later events of the key are \
then published in order. If the rejected event was marked as sent or deleted manually, the command only \
unblocks the key. `outbox-relay dead-letters list` shows the moved events.

Examples:
  outbox-relay blocked-keys dead-letter --config config.toml --id 1042
  outbox-relay blocked-keys dead-letter --config config.toml --older-than 2days --dry-run

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct DeadLetter {
    #[command(flatten)]
    chosen: Chosen,
}

impl DeadLetter {
    pub(crate) fn run(self) -> Result<(), Failed> {
        act(&self.chosen, &DEAD_LETTER, async |keys, selection, batch| {
            keys.dead_letter(selection, batch).await
        })
    }
}
