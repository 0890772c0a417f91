//! `outbox-relay dead-letters`: events that were rejected permanently.

mod act;
mod discard;
mod history;
mod list;
mod requeue;
mod show;

use super::exit::Failed;
use super::one_shot;
use super::terminal::output::{counted, in_line, time};
use crate::config::Config;
use clap::{Args, Subcommand};
use postgres::access::grants::Privilege;
use postgres::operate::rejected::{DeadLetter, PostgresDeadLetters};

/// List, requeue or discard rejected events.
#[derive(Debug, Args)]
#[command(after_help = "\
A dead letter is an event that cannot be published: Kafka permanently rejected it, the relay found it invalid, or \
PostgreSQL could not read it. Every requeue, discard and `blocked-keys` action is \
recorded with the role that ran it; `history` shows the records. If a privilege is missing, the error contains the \
GRANT statement. The SQL of `migrate --print-roles` creates an operator role with all required privileges.

Examples:
  outbox-relay dead-letters list --config config.toml
  outbox-relay dead-letters requeue --config config.toml --topic events.order --dry-run

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct DeadLetters {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters, newest first, without payloads.
    List(list::List),
    /// Show a dead letter with its headers and payload.
    Show(show::Show),
    /// Put dead letters back into the outbox.
    Requeue(requeue::Requeue),
    /// Delete dead letters.
    Discard(discard::Discard),
    /// List operator actions, newest first.
    History(history::History),
}

impl DeadLetters {
    pub(crate) fn run(self) -> Result<(), Failed> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Show(show) => show.run(),
            Command::Requeue(requeue) => requeue.run(),
            Command::Discard(discard) => discard.run(),
            Command::History(history) => history.run(),
        }
    }
}

/// Connects to the dead letters of the configured outbox, and checks that the role has these privileges.
async fn open(config: &Config, privileges: &[Privilege]) -> Result<PostgresDeadLetters, Failed> {
    let database = one_shot::database(config)?;
    let facts = one_shot::allowed(config, &database, privileges).await?;
    let topics = facts.topics(&config.outbox);
    Ok(PostgresDeadLetters::new(database, config.outbox.table.clone(), facts.payload, topics))
}

/// One line of the list, without headers and payload.
fn describe(letter: &DeadLetter) -> String {
    let DeadLetter { id, event_id, .. } = letter;
    let payload = letter
        .payload_bytes
        .map_or("tombstone".to_owned(), |bytes| counted(bytes.unsigned_abs().into(), "byte"));
    let requeued = letter.requeued_at.map(|at| format!("  requeued {}", time(at))).unwrap_or_default();
    format!(
        "{id}  {rejected}  {reason}  {topic}  key {key}  event {event_id}  {payload}{requeued}",
        rejected = time(letter.rejected_at),
        reason = in_line(&letter.reason, 100),
        topic = in_line(&letter.topic, 249),
        key = in_line(&letter.aggregate_id, 100),
    )
}
