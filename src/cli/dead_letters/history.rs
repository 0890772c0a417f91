//! `outbox-relay dead-letters history`.

use crate::cli::exit::Failed;
use crate::cli::output::{self, in_line, time};
use crate::cli::selection::Shown;
use crate::cli::{ConfigFile, block_on, one_shot};
use crate::postgres::acts::{Act, PostgresActs};
use crate::postgres::grants::HISTORY_RIGHTS;
use clap::Args;
use serde::Serialize;
use uuid::Uuid;

/// List what was done to dead letters and blocked keys, and by whom, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
The acts: requeue and discard of `dead-letters`; retry and dead-letter of `blocked-keys`; lift, a block whose event was \
gone. A line: when, the role, the act, the dead letter, the outbox row that Kafka refused, the event_id, the topic, the \
reason of the refusal, and the application_name and address of the connection.

Each act is recorded in its own transaction, and the record outlives a discarded dead letter. Nothing deletes it.

Fields of --json: id, at, role, application, address (null for a socket), act, dead_letter_id (or null), outbox_id, \
event_id, aggregate_type, topic, reason.

Examples:
  outbox-relay dead-letters history --config config.toml
  outbox-relay dead-letters history --config config.toml --json --limit 1000 | jq -r .role | sort | uniq -c

Exit codes: 0 shown, 2 usage, 69 Postgres cannot be reached, 78 the configuration, the grants or the schema have to be \
mended.")]
pub struct History {
    #[command(flatten)]
    config: ConfigFile,
    /// Only what was done to this event.
    #[arg(long, value_name = "UUID")]
    event_id: Option<Uuid>,
    #[command(flatten)]
    shown: Shown,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    id: i64,
    at: String,
    role: &'a str,
    application: &'a str,
    address: Option<&'a str>,
    act: &'a str,
    dead_letter_id: Option<i64>,
    outbox_id: i64,
    event_id: String,
    aggregate_type: &'a str,
    topic: &'a str,
    reason: &'a str,
}

impl History {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let show =
            |act: &Act| Ok((act.id, if self.shown.json { output::json(&line(act))? } else { describe(act) }));
        block_on(async {
            let database = one_shot::database(&config)?;
            one_shot::allowed(&config, &database, HISTORY_RIGHTS).await?;
            let acts = PostgresActs::new(database, config.outbox.table.clone());
            let page = async |before, rows| acts.history(self.event_id, before, rows).await;
            output::list(self.shown.limit, page, show).await
        })?
    }
}

fn line(act: &Act) -> Line<'_> {
    Line {
        id: act.id,
        at: time(act.at),
        role: &act.role,
        application: &act.application,
        address: act.address.as_deref(),
        act: &act.act,
        dead_letter_id: act.dead_letter_id,
        outbox_id: act.outbox_id,
        event_id: act.event_id.to_string(),
        aggregate_type: &act.aggregate_type,
        topic: &act.topic,
        reason: &act.reason,
    }
}

fn describe(act: &Act) -> String {
    let letter = act.dead_letter_id.map(|id| format!("  dead letter {id}")).unwrap_or_default();
    format!(
        "{at}  {role}  {what}{letter}  outbox row {row}  event {event}  {topic}  {reason}  from {application} at {address}",
        at = time(act.at),
        role = in_line(&act.role, 63),
        what = in_line(&act.act, 20),
        row = act.outbox_id,
        event = act.event_id,
        topic = in_line(&act.topic, 249),
        reason = in_line(&act.reason, 100),
        application = in_line(&act.application, 63),
        address = act.address.as_deref().unwrap_or("a socket"),
    )
}
