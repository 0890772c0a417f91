//! `outbox-relay blocked-keys retry`.

use super::act::{Action, Chosen, act};
use crate::cli::exit::Failed;
use clap::Args;
use postgres::access::grants::RETRY_PRIVILEGES;

const RETRY: Action = Action {
    name: "retry",
    done: "will be retried",
    preview: "would be retried",
    privileges: RETRY_PRIVILEGES,
};

/// Retry rejected events, in order.
#[derive(Debug, Args)]
#[command(after_help = "\
Fix the cause of the rejection first, such as the topic's max.message.bytes. The command unblocks the key, and a \
running relay publishes its events in order, starting with the rejected one. If Kafka rejects the event again, the key is \
blocked again. If the rejected event was marked as sent or deleted manually, the command only unblocks the \
key.

Examples:
  outbox-relay blocked-keys retry --config config.toml --topic events.order --dry-run
  outbox-relay blocked-keys retry --config config.toml --key 42

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct Retry {
    #[command(flatten)]
    chosen: Chosen,
}

impl Retry {
    pub(crate) fn run(self) -> Result<(), Failed> {
        act(&self.chosen, &RETRY, async |keys, selection, batch| keys.retry(selection, batch).await)
    }
}
