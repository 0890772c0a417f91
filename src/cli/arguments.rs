//! Arguments that several commands have.

use super::failed::Failed;
use super::output;
use clap::Args;
use humantime::{format_duration, parse_duration, parse_rfc3339_weak};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// The largest `--reason`, in bytes. It is stored in the history and logged.
const REASON_BYTES_MAX: usize = 1_000;

pub(crate) fn reason(text: &str) -> Result<String, String> {
    if text.len() > REASON_BYTES_MAX {
        return Err(format!("it has {} bytes. Write at most {REASON_BYTES_MAX}", text.len()));
    }
    Ok(text.to_owned())
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    ago(text, "write a number and a unit, such as 1h or 2days")
}

/// A duration that is counted back from now. The message of the library gives a position, `example` a better one.
fn ago(text: &str, example: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("write the duration without a sign, such as 1h: it is counted back from now".to_owned());
    }
    parse_duration(text).map_err(|_| example.to_owned())
}

pub(crate) fn number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "an ID is a whole number, such as 17".to_owned())
}

pub(crate) fn event_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "an event ID is a UUID, such as 0199d6c1-3a52-7b1e-9c55-0a4f0d6f3b7e".to_owned())
}

fn limit(text: &str) -> Result<u32, String> {
    let limit = text.parse::<u32>().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| format!("write a number from 1 to {}", u32::MAX))
}

/// A time, or a duration before the server's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Ago(Duration),
    At(SystemTime),
}

pub(crate) fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(at) = parse_rfc3339_weak(text) {
        return Ok(Moment::At(at));
    }
    ago(text, "write a duration before now, such as 2h, or a time in UTC, such as 2026-01-31T12:00:00Z")
        .map(Moment::Ago)
}

impl Moment {
    /// The time, at this time of the server.
    pub(crate) fn at(self, now: SystemTime) -> Result<SystemTime, Failed> {
        match self {
            Moment::At(at) => Ok(at),
            // PostgreSQL and Kafka have no times far before 1970.
            Moment::Ago(ago) => {
                now.checked_sub(ago).filter(|at| *at >= SystemTime::UNIX_EPOCH).ok_or_else(|| {
                    let ago = format_duration(ago);
                    Failed::Usage(format!("{ago} before now is before 1970. Use a shorter duration."))
                })
            }
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
        let asks = self.all && !self.dry_run && !self.yes && output::can_ask();
        if asks { output::confirm(question) } else { Ok(()) }
    }

    pub(crate) fn most(&self) -> i64 {
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
