//! `outbox-relay blocked-keys list`.

use super::{describe, open};
use crate::cli::arguments::selection::{Filters, ListOptions};
use crate::cli::exit::Failed;
use crate::cli::terminal::output::{self, time};
use crate::cli::{ConfigFile, block_on};
use clap::Args;
use postgres::access::grants::BLOCK_PRIVILEGES;
use postgres::operate::rejected::BlockedKey;
use relay::reason::blocked_key_remedy;
use serde::Serialize;

/// List blocked keys, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Each line shows the ID of the rejected row, the time when the key was blocked, the reason, topic, key and event_id. \
It also shows whether the event is gone because it was marked as sent or deleted manually. In that case, \
`retry` unblocks the key.

Fields of --json: id, event_id, aggregate_type, aggregate_id, topic, reason, error, blocked_at, event_gone, remedy.

Examples:
  outbox-relay blocked-keys list --config config.toml --older-than 1h
  outbox-relay blocked-keys list --config config.toml --json | jq -r .topic | sort | uniq -c

Exit codes: 0 success, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid configuration or schema, or \
missing privileges.")]
pub(crate) struct List {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ListOptions,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    id: i64,
    event_id: String,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    topic: &'a str,
    reason: &'a str,
    error: &'a str,
    blocked_at: String,
    event_gone: bool,
    remedy: &'static str,
}

impl List {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let selection = self.filters.selection();
        let show = |key: &BlockedKey| {
            Ok((key.outbox_id, if self.options.json { output::json(&line(key))? } else { describe(key) }))
        };
        block_on(async {
            let keys = open(&config, BLOCK_PRIVILEGES).await?;
            let page = async |before, rows| keys.newest(&selection, before, rows).await;
            output::list(&self.options, "no blocked keys", page, show).await
        })?
    }
}

fn line(key: &BlockedKey) -> Line<'_> {
    Line {
        id: key.outbox_id,
        event_id: key.event_id.to_string(),
        aggregate_type: &key.aggregate_type,
        aggregate_id: &key.aggregate_id,
        topic: &key.topic,
        reason: &key.reason,
        error: &key.error,
        blocked_at: time(key.blocked_at),
        event_gone: !key.unsent,
        remedy: blocked_key_remedy(&key.reason),
    }
}
