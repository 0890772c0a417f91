//! The filters of `dead-letters` and `blocked-keys`.

use super::exit::Failed;
use crate::postgres::operate::selection::Selection;
use clap::Args;
use std::time::Duration;
use uuid::Uuid;

/// Which ones. Several filters: those that fit all of them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which ones")]
pub struct Filters {
    /// Of events for this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Of events with this key (`aggregate_id`).
    #[arg(long)]
    key: Option<String>,
    /// Refused for this reason, such as record-too-large.
    #[arg(long)]
    reason: Option<String>,
    /// Refused longer ago than this, such as 1h or 2days.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Refused since, such as 1h or 2days ago.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    newer_than: Option<Duration>,
    /// With one of these ids, the first column of `list`.
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true)]
    id: Vec<i64>,
    /// Of one of these events.
    #[arg(long, value_name = "UUID", value_delimiter = ',')]
    event_id: Vec<Uuid>,
}

impl Filters {
    /// As the statements take them.
    pub fn selection(&self) -> Selection {
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

/// What a command that changes something has beside the filters.
#[derive(Debug, Args)]
#[command(next_help_heading = None::<&str>)]
pub struct Deed {
    /// All of them: there has to be this or a filter.
    #[arg(long)]
    pub all: bool,
    /// Show what would happen, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// At most so many, the oldest first.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl Deed {
    /// Nothing is changed without having been named.
    pub fn check(&self, filtered: bool) -> Result<(), Failed> {
        match (self.all, filtered) {
            (false, false) => Err(Failed::Usage(
                "say which ones, by --id, --topic or another filter, or say --all; --dry-run shows what would happen"
                    .to_owned(),
            )),
            (true, true) => Err(Failed::Usage("--all and a filter contradict each other".to_owned())),
            _ => Ok(()),
        }
    }

    /// How many at most.
    pub fn most(&self) -> u64 {
        self.limit.map_or(i64::MAX as u64, u64::from)
    }
}

/// What a command that only shows has beside the filters.
#[derive(Debug, Args)]
#[command(next_help_heading = None::<&str>)]
pub struct Shown {
    /// At most so many, the newest first.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Print one JSON object a line: fields may be added in later versions, none is renamed or removed.
    #[arg(long)]
    pub json: bool,
}
