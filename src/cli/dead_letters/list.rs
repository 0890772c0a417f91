//! `outbox-relay dead-letters list`.

use super::{describe, open};
use crate::cli::arguments::selection::{Filters, ListOptions};
use crate::cli::exit::Failed;
use crate::cli::terminal::output::{self, time};
use crate::cli::{ConfigFile, block_on};
use clap::Args;
use postgres::access::grants::LETTER_PRIVILEGES;
use postgres::operate::rejected::{DeadLetter, Filter};
use serde::Serialize;

/// List dead letters, newest first, without payloads.
#[derive(Debug, Args)]
#[command(after_help = "\
Each line shows the ID, the time of the rejection, the reason, topic, key, event_id, payload size, and the time of the \
requeue, if any. `show ID` prints the rest.

Fields of --json: id, outbox_id, event_id, aggregate_type, aggregate_id, event_type, topic, reason, error, \
rejected_at, requeued_at (or null), payload_bytes (null for a tombstone).

Examples:
  outbox-relay dead-letters list --config config.toml --topic events.order --newer-than 1h
  outbox-relay dead-letters list --config config.toml --json --limit 1000 | jq -r .reason | sort | uniq -c

Exit codes: 0 success, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid configuration or schema, or \
missing privileges.")]
pub(crate) struct List {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    /// Only dead letters that were requeued.
    #[arg(long, help_heading = "Filters", conflicts_with = "not_requeued")]
    requeued: bool,
    /// Only dead letters that were not requeued.
    #[arg(long, help_heading = "Filters")]
    not_requeued: bool,
    #[command(flatten)]
    options: ListOptions,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    id: i64,
    outbox_id: i64,
    event_id: String,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    topic: String,
    reason: String,
    error: String,
    rejected_at: String,
    requeued_at: Option<String>,
    payload_bytes: Option<i32>,
}

impl Line {
    pub(crate) fn new(letter: &DeadLetter) -> Line {
        Line {
            id: letter.id,
            outbox_id: letter.outbox_id,
            event_id: letter.event_id.to_string(),
            aggregate_type: letter.aggregate_type.clone(),
            aggregate_id: letter.aggregate_id.clone(),
            event_type: letter.event_type.clone(),
            topic: letter.topic.clone(),
            reason: letter.reason.clone(),
            error: letter.error.clone(),
            rejected_at: time(letter.rejected_at),
            requeued_at: letter.requeued_at.map(time),
            payload_bytes: letter.payload_bytes,
        }
    }
}

impl List {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let requeued = match (self.requeued, self.not_requeued) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        let filter = Filter { selection: self.filters.selection(), requeued };
        let show = |letter: &DeadLetter| {
            let text = if self.options.json { output::json(&Line::new(letter))? } else { describe(letter) };
            Ok((letter.id, text))
        };
        block_on(async {
            let letters = open(&config, LETTER_PRIVILEGES).await?;
            let page = async |before, rows| letters.newest(&filter, before, rows).await;
            output::list(&self.options, "no dead letters", page, show).await
        })?
    }
}
