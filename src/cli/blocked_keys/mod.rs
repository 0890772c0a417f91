//! `outbox-relay blocked-keys`: the keys whose events wait behind one that Kafka refused.

mod act;
mod dead_letter;
mod list;
mod retry;

use super::exit::Failed;
use super::one_shot;
use super::output::{in_line, time};
use crate::config::Config;
use crate::postgres::access::grants::Right;
use crate::postgres::operate::blocked_keys::{BlockedKey, PostgresBlockedKeys};
use clap::{Args, Subcommand};

/// Look at the keys whose events wait behind a refused one, and decide what becomes of it.
#[derive(Debug, Args)]
#[command(after_help = "\
With [outbox] on_rejected = \"block-key\", an event that Kafka refuses for good stays in the outbox, and the events of its \
key wait behind it; all other keys flow. The relay does not try it again by itself.

What these commands do is recorded; `outbox-relay dead-letters history` shows it. A right that is missing is named, as \
the GRANT to execute; `migrate --print-roles` has a role with all of them.

Examples:
  outbox-relay blocked-keys list --config config.toml
  outbox-relay blocked-keys retry --config config.toml --topic events.order

Exit codes: 0 done, even if nothing fits, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration, the \
grants or the schema have to be mended.")]
pub struct BlockedKeys {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List blocked keys, newest first.
    List(list::List),
    /// Let the relay try the refused events again, in order.
    Retry(retry::Retry),
    /// Move the refused events to the dead letters, and let the others of their keys flow.
    DeadLetter(dead_letter::DeadLetter),
}

impl BlockedKeys {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Retry(retry) => retry.run(),
            Command::DeadLetter(dead_letter) => dead_letter.run(),
        }
    }
}

/// What a person can do about a key that is blocked for this reason.
pub fn remedy(reason: &str) -> &'static str {
    match reason {
        "record-too-large" => {
            "raise the topic's max.message.bytes (and message.max.bytes in [kafka.properties]), then `outbox-relay \
             blocked-keys retry`; or `outbox-relay blocked-keys dead-letter`"
        }
        "invalid-topic-name" | "invalid-headers" => {
            "the event can never be sent as it is: `outbox-relay blocked-keys dead-letter`, or correct the row and \
             `outbox-relay blocked-keys retry`"
        }
        _ => {
            "mend what the error says, then `outbox-relay blocked-keys retry`; or `outbox-relay blocked-keys dead-letter`"
        }
    }
}

/// The blocked keys of the configured outbox, for somebody who has these rights.
async fn open(config: &Config, rights: &[Right]) -> Result<PostgresBlockedKeys, Failed> {
    let database = one_shot::database(config)?;
    let facts = one_shot::allowed(config, &database, rights).await?;
    Ok(PostgresBlockedKeys::new(database, config.outbox.table.clone(), facts.payload))
}

/// One line.
fn describe(key: &BlockedKey) -> String {
    let gone = if key.there { "" } else { "  its event is gone: sent or deleted by hand" };
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
