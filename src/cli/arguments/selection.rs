//! The filters of `dead-letters` and `blocked-keys`.

use crate::cli::exit::Failed;
use crate::cli::terminal::ask;
use clap::Args;
use postgres::operate::rejected::Selection;
use std::time::Duration;
use uuid::Uuid;

/// The largest `--reason`, in bytes. It is stored in the history and logged.
const REASON_BYTES_MAX: usize = 1_000;

/// Parses a reason that an operator gives.
pub(crate) fn reason(text: &str) -> Result<String, String> {
    if text.len() > REASON_BYTES_MAX {
        return Err(format!("it has {} bytes. Write at most {REASON_BYTES_MAX}", text.len()));
    }
    Ok(text.to_owned())
}

/// Parses a duration. The library's message gives a position, this one an example.
fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("write the duration without a sign, such as 1h: it is counted back from now".to_owned());
    }
    humantime::parse_duration(text).map_err(|_| "write a number and a unit, such as 1h or 2days".to_owned())
}

/// Parses an ID.
pub(crate) fn number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "an ID is a whole number, such as 17".to_owned())
}

/// Parses an event ID.
pub(crate) fn event_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "an event ID is a UUID, such as 0199d6c1-3a52-7b1e-9c55-0a4f0d6f3b7e".to_owned())
}

/// Parses the value of `--limit`.
fn limit(text: &str) -> Result<u32, String> {
    let limit = text.parse::<u32>().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| format!("write a number from 1 to {}", u32::MAX))
}

/// Filters, which all have to match.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct Filters {
    /// Only events for this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only events with this key (`aggregate_id`).
    #[arg(long)]
    key: Option<String>,
    /// Only events rejected for this reason, such as record-too-large.
    #[arg(long)]
    reason: Option<String>,
    /// Only events rejected longer ago than this, such as 1h or 2days.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    older_than: Option<Duration>,
    /// Only events rejected within this time, such as 1h or 2days.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    newer_than: Option<Duration>,
    /// Only these IDs (first column of `list`), separated by commas.
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true, value_parser = number)]
    id: Vec<i64>,
    /// Only these event IDs, separated by commas.
    #[arg(long, value_name = "UUID", value_delimiter = ',', value_parser = event_id)]
    event_id: Vec<Uuid>,
}

impl Filters {
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            topic: self.topic.clone(),
            key: self.key.clone(),
            reason: self.reason.clone(),
            older_than: self.older_than.map(Selection::seconds),
            newer_than: self.newer_than.map(Selection::seconds),
            ids: (!self.id.is_empty()).then(|| self.id.clone()),
            event_ids: (!self.event_id.is_empty()).then(|| self.event_id.clone()),
        }
    }
}

/// Options of commands that change something, in addition to the filters.
#[derive(Debug, Args)]
#[command(next_help_heading = None::<&str>)]
pub(crate) struct ChangeOptions {
    /// Select all events. Required if there is no filter.
    #[arg(long)]
    pub all: bool,
    /// Do not ask for confirmation of --all. Without a terminal, the command never asks.
    #[arg(long)]
    pub yes: bool,
    /// Show what would happen without changing anything.
    #[arg(long)]
    pub dry_run: bool,
    /// Process at most N events, oldest first.
    #[arg(long, value_name = "N", value_parser = limit)]
    pub limit: Option<u32>,
    /// Print a JSON object.
    #[arg(long)]
    pub json: bool,
}

impl ChangeOptions {
    /// Fails unless there is either a filter or --all.
    pub(crate) fn check(&self, filtered: bool) -> Result<(), Failed> {
        match (self.all, filtered) {
            (false, false) => {
                let preview = if self.dry_run { "" } else { " To preview, add --dry-run." };
                let text = "No selection. Pass a filter such as --event-id or --topic, or --all.";
                Err(Failed::Usage(format!("{text}{preview}")))
            }
            (true, true) => Err(Failed::Usage("--all cannot be combined with a filter.".to_owned())),
            _ => Ok(()),
        }
    }

    /// Asks on a terminal before everything is changed. `question` is, for example, "Discard all dead letters?".
    pub(crate) fn confirm(&self, question: &str) -> Result<(), Failed> {
        let asks = self.all && !self.dry_run && !self.yes && ask::can_ask();
        if asks && !ask::confirm(question)? {
            return Err(Failed::Failure(anyhow::anyhow!("Canceled. Nothing was changed.")));
        }
        Ok(())
    }

    pub(crate) fn most(&self) -> u64 {
        self.most_rows().unsigned_abs()
    }

    /// The same, as a parameter of a statement.
    pub(crate) fn most_rows(&self) -> i64 {
        self.limit.map_or(i64::MAX, i64::from)
    }
}

/// Options of commands that list something, in addition to the filters.
#[derive(Debug, Args)]
#[command(next_help_heading = None::<&str>)]
pub(crate) struct ListOptions {
    /// Show at most N entries.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = limit)]
    pub limit: u32,
    /// Print one JSON object per line. Later versions may add fields, but never rename or remove them.
    #[arg(long)]
    pub json: bool,
}
