//! `outbox-relay dead-letters`: events that were rejected permanently and have left the outbox.

use super::arguments::{ChangeOptions, ListOptions, number};
use super::frame::{ConfigFile, Failed, Outbox, on_outbox};
use super::history::History;
use super::output::{self, Entry, Object, counted, list};
use super::rejected::{Action, Filters, Rejected, Total, change, opened};
use crate::config::Config;
use clap::{Args, Subcommand};
use kafka::cluster::record_bytes_max;
use postgres::access::grants::{DISCARD_PRIVILEGES, LETTER_PRIVILEGES, REQUEUE_PRIVILEGES};
use postgres::operate::rejected::{
    DeadLetter, Filter, HeaderChanges, PostgresDeadLetters, RejectedAgain, WholeDeadLetter,
};
use relay::failure::PostgresFault;
use serde_json::Value;
use settings::text::{in_line, time};
use std::io::IsTerminal;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/dead-letters.txt").trim_ascii_end())]
pub(crate) struct DeadLetters {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters, newest first, without payloads.
    List(List),
    /// Show a dead letter with its headers and payload.
    Show(Show),
    /// Put dead letters back into the outbox.
    Requeue(Requeue),
    /// Delete dead letters.
    Discard(Discard),
    /// List operator actions, newest first.
    History(History),
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

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/dead-letters-list.txt").trim_ascii_end())]
struct List {
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

impl List {
    fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let requeued = match (self.requeued, self.not_requeued) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        let filter = Filter { selection: self.filters.selection(), requeued };
        on_outbox(&config, LETTER_PRIVILEGES, async |outbox| {
            let letters = Letters::new(outbox, filter);
            list(&self.options, "no dead letters", async |before, rows| {
                letters.store.newest(&letters.filter, before, rows).await
            })
            .await
        })
    }
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/dead-letters-show.txt").trim_ascii_end())]
struct Show {
    #[command(flatten)]
    config: ConfigFile,
    /// ID of the dead letter (first column of `list`).
    #[arg(value_parser = number)]
    id: i64,
    /// Print a JSON object. Later versions may add fields, but never rename or remove them.
    #[arg(long)]
    json: bool,
    /// Print only the payload.
    #[arg(long, conflicts_with = "json")]
    payload: bool,
    /// Print the payload unchanged, even on a terminal.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

impl Show {
    /// The only command that prints the payload of an event.
    fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let whole = on_outbox(&config, LETTER_PRIVILEGES, async |outbox| {
            Ok(Letters::new(outbox, Filter::default()).store.whole(self.id).await?)
        })?;
        let Some(whole) = whole else {
            return Err(Failed::failure(format!(
                "{} has no dead letter {}. To list all, run: outbox-relay dead-letters list",
                config.outbox.table, self.id
            )));
        };
        if self.json {
            return output::text(output::json(&whole_json(&whole))? + "\n");
        }
        let is_raw = self.raw || self.payload && !std::io::stdout().is_terminal();
        let print = |bytes: &[u8]| if is_raw { output::unchanged(bytes) } else { output::text(bytes) };
        let payload = whole.payload.as_deref();
        if self.payload {
            return print(payload.unwrap_or_default());
        }
        output::text(whole_text(&whole))?;
        payload.map_or(Ok(()), |payload| print(&[b"\n", payload, b"\n"].concat()))
    }
}

fn whole_json(whole: &WholeDeadLetter) -> Object {
    let encoded = whole.payload.as_deref().map(|bytes| match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), "utf-8"),
        Err(_) => (bytes.iter().map(|byte| format!("{byte:02x}")).collect(), "hex"),
    });
    let (payload, payload_encoding) = encoded.unzip();
    // Headers that cannot be parsed, for example because of a number that is out of range, stay text.
    let headers = |json: &str| serde_json::from_str(json).unwrap_or_else(|_| Value::from(json));
    let mut object = whole.letter.json();
    object.0.extend([
        ("created_at", whole.created_at.as_str().into()),
        ("headers", whole.headers.as_deref().map_or(Value::Null, headers)),
        ("payload", payload.into()),
        ("payload_encoding", payload_encoding.into()),
    ]);
    object
}

/// Everything before the payload.
fn whole_text(whole: &WholeDeadLetter) -> String {
    let letter = &whole.letter;
    let shown = |text: &str| in_line(text, usize::MAX);
    [
        ("dead letter", letter.id.to_string()),
        ("event", letter.event_id.to_string()),
        ("aggregate type", shown(&letter.aggregate_type)),
        ("key", shown(&letter.aggregate_id)),
        ("event type", shown(&letter.event_type)),
        ("created", whole.created_at.clone()),
        ("outbox row", letter.outbox_id.to_string()),
        ("topic", shown(&letter.topic)),
        ("rejected", time(letter.rejected_at)),
        ("reason", shown(&letter.reason)),
        ("error", shown(&letter.error)),
        ("requeued", letter.requeued_at.map_or("never".to_owned(), time)),
        ("headers", shown(whole.headers.as_deref().unwrap_or("none"))),
        ("payload", letter.payload_bytes.map_or("none (tombstone)".to_owned(), bytes)),
    ]
    .map(|(name, value)| format!("{name:<15} {value}\n"))
    .concat()
}

const REQUEUE: Action = Action {
    name: "requeue",
    question: "Requeue all selected dead letters of",
    done: "requeued",
    preview: "would be requeued",
    privileges: REQUEUE_PRIVILEGES,
};

const DISCARD: Action = Action {
    name: "discard",
    question: "Discard all selected dead letters of",
    done: "discarded",
    preview: "would be discarded",
    privileges: DISCARD_PRIVILEGES,
};

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/dead-letters-requeue.txt").trim_ascii_end())]
struct Requeue {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ChangeOptions,
    /// Include dead letters that were already requeued.
    #[arg(long)]
    again: bool,
    /// Only dead letters that were not requeued. This is the default.
    #[arg(long, conflicts_with = "again")]
    not_requeued: bool,
    /// Replace header values that are not strings by their JSON text, and drop null.
    #[arg(long, help_heading = "Headers")]
    stringify_headers: bool,
    /// Drop the header NAME. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Headers")]
    drop_header: Vec<String>,
    /// Set the header NAME to VALUE. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header, help_heading = "Headers")]
    set_header: Vec<(String, String)>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as source=shop")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Requeue {
    fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let requeued = if self.again { None } else { Some(false) };
        let filter = Filter { selection: self.filters.selection(), requeued };
        self.options.check(!filter.selection.is_all())?;
        let changes = HeaderChanges::new(self.stringify_headers, &self.drop_header, &self.set_header);
        let open = async |outbox: Outbox<'_>| {
            let letters = Letters::new(outbox, filter);
            let up_to = letters.highest_id().await?;
            refuse_to_lose_topics(&config, &letters, up_to).await?;
            let reserved = config.outbox.headers.iter().filter(|header| header.is_reserved());
            let reserved: Vec<&str> = reserved.map(|header| header.name.as_str()).collect();
            let (limits, bytes_max) = ((up_to, self.options.most()), record_bytes_max(&config.kafka));
            let again = letters.store.rejected_again(&letters.filter, limits, &changes, &reserved, bytes_max);
            warn(again.await?, bytes_max);
            Ok((letters, up_to))
        };
        change(&config, &REQUEUE, &self.options, open, async |letters, batch| {
            letters.store.requeue(&letters.filter, batch, &changes).await
        })
    }
}

fn warn(RejectedAgain { headers, too_large, topic }: RejectedAgain, bytes_max: usize) {
    let fix_headers = "correct them with --stringify-headers, --drop-header or --set-header";
    let raise = format!("raise message.max.bytes = {bytes_max} in [kafka.properties] and restart the relays");
    let allow = "correct [outbox] topic or topic_allow and restart the relays, or insert the events again";
    for (count, reason, fix) in [
        (headers, "their headers are invalid", fix_headers),
        (too_large, "they are larger than the relay allows", &raise),
        (topic, "the name of their topic is invalid or not allowed", allow),
    ] {
        if count > 0 {
            let events = counted(count, "event");
            eprintln!("warning: {events} will be rejected again: {reason}. Fix: {fix}.");
        }
    }
}

/// Without the column `topic`, an event that names its topic would be published to the topic of the template.
async fn refuse_to_lose_topics(config: &Config, letters: &Letters, up_to: i64) -> Result<(), Failed> {
    let losing = letters.store.losing_their_topic(&letters.filter, up_to).await?;
    if losing == 0 {
        return Ok(());
    }
    Err(Failed::failure(format!(
        "the events of {} name their topic, but {} no longer has the column topic. Nothing was requeued. Add the column again, \
         discard these dead letters, or select others, for example with --id",
        counted(losing, "dead letter"),
        config.outbox.table,
    )))
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/dead-letters-discard.txt").trim_ascii_end())]
struct Discard {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    /// Only dead letters that were requeued.
    #[arg(long, help_heading = "Filters")]
    requeued: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Discard {
    fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let filter = Filter { selection: self.filters.selection(), requeued: self.requeued.then_some(true) };
        self.options.check(self.requeued || !filter.selection.is_all())?;
        let open = async |outbox: Outbox<'_>| opened(Letters::new(outbox, filter)).await;
        change(&config, &DISCARD, &self.options, open, async |letters, batch| {
            letters.store.discard(&letters.filter, batch).await
        })
    }
}

struct Letters {
    store: PostgresDeadLetters,
    filter: Filter,
}

impl Letters {
    fn new(outbox: Outbox<'_>, filter: Filter) -> Letters {
        let (table, topics) = (outbox.table(), outbox.topics());
        Letters {
            store: PostgresDeadLetters::new(outbox.database, table, outbox.facts.payload, topics),
            filter,
        }
    }
}

impl Rejected for Letters {
    type Event = DeadLetter;
    const COUNTED: &str = "dead letter";
    const FIELD: &str = "dead_letters";
    const LIFTS: bool = false;

    async fn oldest(&self, up_to: i64, rows: i64) -> Result<Vec<DeadLetter>, PostgresFault> {
        self.store.oldest(&self.filter, up_to, rows).await
    }

    async fn highest_id(&self) -> Result<i64, PostgresFault> {
        self.store.highest_id().await
    }

    async fn count(&self, up_to: i64, most: i64) -> Result<Total, PostgresFault> {
        Ok(Total { done: self.store.count(&self.filter, up_to, most).await?, lifted: 0 })
    }

    fn no_match(&self) -> String {
        let skipped = match self.filter.requeued {
            Some(false) => " Requeued ones are skipped unless --again is set.",
            _ => "",
        };
        format!("No dead letter matches.{skipped} To list all, run: outbox-relay dead-letters list")
    }
}

impl Entry for DeadLetter {
    fn id(&self) -> i64 {
        self.id
    }

    /// Without headers and payload.
    fn text(&self) -> String {
        let DeadLetter { id, event_id, .. } = self;
        let payload = self.payload_bytes.map_or("tombstone".to_owned(), bytes);
        let requeued = self.requeued_at.map(|at| format!("  requeued {}", time(at))).unwrap_or_default();
        format!(
            "{id}  {rejected}  {reason}  {topic}  key {key}  event {event_id}  {payload}{requeued}",
            rejected = time(self.rejected_at),
            reason = in_line(&self.reason, 100),
            topic = in_line(&self.topic, 249),
            key = in_line(&self.aggregate_id, 100),
        )
    }

    fn json(&self) -> Object {
        Object(vec![
            ("id", self.id.into()),
            ("outbox_id", self.outbox_id.into()),
            ("event_id", self.event_id.to_string().into()),
            ("aggregate_type", self.aggregate_type.as_str().into()),
            ("aggregate_id", self.aggregate_id.as_str().into()),
            ("event_type", self.event_type.as_str().into()),
            ("topic", self.topic.as_str().into()),
            ("reason", self.reason.as_str().into()),
            ("error", self.error.as_str().into()),
            ("rejected_at", time(self.rejected_at).into()),
            ("requeued_at", self.requeued_at.map(time).into()),
            ("payload_bytes", self.payload_bytes.into()),
        ])
    }
}

fn bytes(count: i32) -> String {
    counted(count.unsigned_abs().into(), "byte")
}
