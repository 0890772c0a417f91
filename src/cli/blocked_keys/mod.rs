//! `outbox-relay blocked-keys`: keys whose events wait for a rejected event.

mod act;
mod dead_letter;
mod list;
mod retry;

use super::exit::Failed;
use super::one_shot;
use super::terminal::output::{in_line, time};
use crate::config::Config;
use clap::{Args, Subcommand};
use postgres::access::grants::Privilege;
use postgres::operate::rejected::{BlockedKey, PostgresBlockedKeys};

/// List and resolve blocked keys.
#[derive(Debug, Args)]
#[command(after_help = "\
With [outbox] on_rejected = \"block-key\", a rejected event stays in the outbox, and later events of its key wait \
behind it. Other keys continue. An event that PostgreSQL cannot read also blocks its key if it cannot be moved to \
the dead letters. The relay does not retry a blocked key by itself.

Every action is recorded; `outbox-relay dead-letters history` shows the records. If a privilege is missing, the error \
contains the GRANT statement. The SQL of `migrate --print-roles` creates an operator role with all required privileges.

Examples:
  outbox-relay blocked-keys list --config config.toml
  outbox-relay blocked-keys retry --config config.toml --topic events.order

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct BlockedKeys {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List blocked keys, newest first.
    List(list::List),
    /// Retry rejected events, in order.
    Retry(retry::Retry),
    /// Move rejected events to the dead letters.
    DeadLetter(dead_letter::DeadLetter),
}

impl BlockedKeys {
    pub(crate) fn run(self) -> Result<(), Failed> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Retry(retry) => retry.run(),
            Command::DeadLetter(dead_letter) => dead_letter.run(),
        }
    }
}

/// Connects to the blocked keys of the configured outbox, and checks that the role has these privileges.
async fn open(config: &Config, privileges: &[Privilege]) -> Result<PostgresBlockedKeys, Failed> {
    let database = one_shot::database(config)?;
    let facts = one_shot::allowed(config, &database, privileges).await?;
    Ok(PostgresBlockedKeys::new(database, config.outbox.table.clone(), &facts))
}

/// One line of the list.
fn describe(key: &BlockedKey) -> String {
    let gone = if key.unsent { "" } else { "  event gone (marked as sent or deleted manually)" };
    format!(
        "{id}  {since}  {reason}  {topic}  key {name}  event {event}{gone}",
        id = key.outbox_id,
        since = time(key.blocked_at),
        reason = in_line(&key.reason, 100),
        topic = in_line(&key.topic, 249),
        name = in_line(&key.aggregate_id, 100),
        event = key.event_id,
    )
}
