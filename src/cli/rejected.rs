//! `outbox-relay dead-letters` and `blocked-keys`: rejected events, which have two forms. A dead letter has left the outbox; with
//! `on_rejected = "block-key"`, the event stays there and blocks its key. Both are changed in batches, with a preview.

use super::arguments::{ChangeOptions, ListOptions, duration, event_id, number};
use super::failed::Failed;
use super::frame::{ConfigFile, Outbox, on_outbox};
use super::output::{self, Entry, Object, counted, list};
use crate::config::Config;
use clap::{Args, Subcommand};
use kafka::cluster::record_bytes_max;
use postgres::access::grants::{
    BLOCK_PRIVILEGES, DISCARD_PRIVILEGES, HISTORY_PRIVILEGES, LETTER_PRIVILEGES, REQUEUE_PRIVILEGES,
    RETRY_PRIVILEGES, UNBLOCK_PRIVILEGES,
};
use postgres::connection::exec::ShortTransaction;
use postgres::operate::rejected::{
    Act, Action, Batch, Changed, Details, Form, HeaderChanges, PostgresRejected, RejectedAgain,
    RejectedEvent, Selection, WholeDeadLetter, history,
};
use postgres::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use serde::Serialize;
use serde_json::Value;
use settings::text::{in_line, time};
use std::io::IsTerminal;
use std::time::Duration;
use uuid::Uuid;

/// Events per transaction. A rejected event may be large.
const BATCH_ROWS: u64 = 100;
const PREVIEW_ROWS: i64 = 100;

#[derive(Debug, Subcommand)]
pub(super) enum DeadLetters {
    /// List dead letters, newest first, without payloads.
    #[command(after_help = include_str!("help/dead-letters-list.txt").trim_ascii_end())]
    List {
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
    },
    /// Show a dead letter with its headers and payload.
    #[command(after_help = include_str!("help/dead-letters-show.txt").trim_ascii_end())]
    Show(Show),
    /// Put dead letters back into the outbox.
    #[command(after_help = include_str!("help/dead-letters-requeue.txt").trim_ascii_end())]
    Requeue {
        #[command(flatten)]
        change: Change,
        /// Include dead letters that were already requeued.
        #[arg(long)]
        again: bool,
        /// Only dead letters that were not requeued. This is the default.
        #[arg(long, conflicts_with = "again")]
        not_requeued: bool,
        /// Replace header values that are neither strings nor base64 by their JSON text, and drop null.
        #[arg(long, help_heading = "Headers")]
        stringify_headers: bool,
        /// Drop the header NAME. May be repeated.
        #[arg(long, value_name = "NAME", help_heading = "Headers")]
        drop_header: Vec<String>,
        /// Set the header NAME to VALUE. May be repeated.
        #[arg(long, value_name = "NAME=VALUE", value_parser = header, help_heading = "Headers")]
        set_header: Vec<(String, String)>,
    },
    /// Delete dead letters.
    #[command(after_help = include_str!("help/dead-letters-discard.txt").trim_ascii_end())]
    Discard {
        #[command(flatten)]
        filters: Filters,
        /// Only dead letters that were requeued.
        #[arg(long, help_heading = "Filters")]
        requeued: bool,
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// List operator actions, newest first.
    #[command(after_help = include_str!("help/dead-letters-history.txt").trim_ascii_end())]
    History {
        /// Only actions on this event.
        #[arg(long, value_name = "UUID", value_parser = event_id)]
        event_id: Option<Uuid>,
        #[command(flatten)]
        options: ListOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum BlockedKeys {
    /// List blocked keys, newest first.
    #[command(after_help = include_str!("help/blocked-keys-list.txt").trim_ascii_end())]
    List {
        #[command(flatten)]
        filters: Filters,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Retry rejected events, in order.
    #[command(after_help = include_str!("help/blocked-keys-retry.txt").trim_ascii_end())]
    Retry(Change),
    /// Move rejected events to the dead letters.
    #[command(after_help = include_str!("help/blocked-keys-dead-letter.txt").trim_ascii_end())]
    DeadLetter(Change),
}

impl DeadLetters {
    pub(super) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        match self {
            DeadLetters::List { filters, requeued, not_requeued, options } => {
                let requeued = (requeued || not_requeued).then_some(requeued);
                list_events(file, filters.selection(Form::DeadLetter, requeued), &options)
            }
            DeadLetters::Show(show) => show.run(file),
            DeadLetters::Requeue { change, again, stringify_headers, drop_header, set_header, .. } => {
                let changes = HeaderChanges::new(stringify_headers, drop_header, set_header);
                perform(file, change, (!again).then_some(false), &Action::Requeue(changes))
            }
            DeadLetters::Discard { filters, requeued, options } => {
                let change = Change { filters, options };
                perform(file, change, requeued.then_some(true), &Action::Discard)
            }
            DeadLetters::History { event_id, options } => {
                let config = file.load_for_database()?;
                on_outbox(&config, HISTORY_PRIVILEGES, async |outbox| {
                    let (reading, table) = (ShortTransaction::reading(outbox.database), &config.outbox.table);
                    let page = async |before, rows| history(&reading, table, event_id, before, rows).await;
                    list(&options, "no actions", page).await
                })
            }
        }
    }
}

impl BlockedKeys {
    pub(super) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        match self {
            BlockedKeys::List { filters, options } => {
                list_events(file, filters.selection(Form::BlockedKey, None), &options)
            }
            BlockedKeys::Retry(change) => perform(file, change, None, &Action::Retry),
            BlockedKeys::DeadLetter(change) => perform(file, change, None, &Action::DeadLetter),
        }
    }
}

/// Filters, which all have to match.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub(super) struct Filters {
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
    fn selection(self, form: Form, requeued: Option<bool>) -> Selection {
        Selection {
            form,
            topic: self.topic,
            key: self.key,
            reason: self.reason,
            older_than: self.older_than.map(|duration| duration.as_secs_f64()),
            newer_than: self.newer_than.map(|duration| duration.as_secs_f64()),
            ids: Some(self.id).filter(|ids| !ids.is_empty()),
            event_ids: Some(self.event_id).filter(|ids| !ids.is_empty()),
            requeued,
        }
    }
}

fn list_events(file: &ConfigFile, selection: Selection, options: &ListOptions) -> Result<(), Failed> {
    let (privileges, none) =
        selection.form.choose((LETTER_PRIVILEGES, "no dead letters"), (BLOCK_PRIVILEGES, "no blocked keys"));
    on_outbox(&file.load_for_database()?, privileges, async |outbox| {
        let rejected = rejected(outbox, selection);
        list(options, none, async |before, rows| rejected.newest(before, rows).await).await
    })
}

fn rejected(outbox: Outbox<'_>, selection: Selection) -> PostgresRejected {
    let (table, topics) = (outbox.table(), outbox.topics());
    PostgresRejected::new(outbox.database, table, outbox.facts.payload, topics, selection)
}

#[derive(Debug, Args)]
pub(super) struct Show {
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
    fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load_for_database()?;
        let whole = on_outbox(&config, LETTER_PRIVILEGES, async |outbox| {
            Ok(rejected(outbox, Selection::default()).whole(self.id).await?)
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

/// The object of `show --json`.
#[derive(Serialize)]
struct WholeJson<'a> {
    #[serde(flatten)]
    event: &'a RejectedEvent,
    created_at: &'a str,
    headers: Option<Value>,
    payload: Option<String>,
    payload_encoding: Option<&'static str>,
}

fn whole_json(whole: &WholeDeadLetter) -> WholeJson<'_> {
    let encoded = whole.payload.as_deref().map(|bytes| match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), "utf-8"),
        Err(_) => (bytes.iter().map(|byte| format!("{byte:02x}")).collect(), "hex"),
    });
    let (payload, payload_encoding) = encoded.unzip();
    // Headers that cannot be parsed, for example because of a number that is out of range, stay text.
    let headers = |json: &str| serde_json::from_str(json).unwrap_or_else(|_| Value::from(json));
    let headers = whole.headers.as_deref().map(headers);
    WholeJson { event: &whole.event, created_at: &whole.created_at, headers, payload, payload_encoding }
}

/// Everything before the payload.
fn whole_text(whole: &WholeDeadLetter) -> String {
    let event = &whole.event;
    let Details::DeadLetter { rejected_at, requeued_at, payload_bytes } = event.details else {
        unreachable!("it is a dead letter");
    };
    let shown = |text: &str| in_line(text, usize::MAX);
    [
        ("dead letter", event.id.to_string()),
        ("event", event.event_id.to_string()),
        ("aggregate type", shown(&event.aggregate_type)),
        ("key", shown(&event.aggregate_id)),
        ("event type", shown(event.event_type.as_deref().unwrap_or_default())),
        ("created", whole.created_at.clone()),
        ("outbox row", event.outbox_id.unwrap_or_default().to_string()),
        ("topic", shown(&event.topic)),
        ("rejected", time(rejected_at)),
        ("reason", shown(&event.reason)),
        ("error", shown(&event.error)),
        ("requeued", requeued_at.map_or("never".to_owned(), time)),
        ("headers", shown(whole.headers.as_deref().unwrap_or("none"))),
        ("payload", payload_bytes.map_or("none (tombstone)".to_owned(), bytes)),
    ]
    .map(|(name, value)| format!("{name:<15} {value}\n"))
    .concat()
}

#[derive(Debug, Args)]
pub(super) struct Change {
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ChangeOptions,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as source=shop")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Fails for events that would lose their topic, and warns of those that would be rejected again.
async fn check_requeue(
    rejected: &PostgresRejected,
    config: &Config,
    changes: &HeaderChanges,
    first: Batch,
) -> Result<(), Failed> {
    // Without the column `topic`, an event that names its topic would be published to the topic of the template.
    let losing = rejected.losing_their_topic(first).await?;
    if losing > 0 {
        return Err(Failed::failure(format!(
            "the events of {} name their topic, but {} no longer has the column topic. Nothing was requeued. Add the column \
             again, discard these dead letters, or select others, for example with --id",
            counted(losing, "dead letter"),
            config.outbox.table,
        )));
    }
    let reserved = config.outbox.headers.iter().filter(|header| header.is_reserved());
    let reserved: Vec<&str> = reserved.map(|header| header.name.as_str()).collect();
    let bytes_max = record_bytes_max(&config.kafka);
    let again = rejected.rejected_again(first, changes, &reserved, bytes_max).await?;
    let fix_headers = "correct them with --stringify-headers, --drop-header or --set-header";
    let raise = format!("raise message.max.bytes = {bytes_max} in [kafka.properties] and restart the relays");
    let allow = "correct [outbox] topic or topic_allow and restart the relays, or insert the events again";
    let RejectedAgain { headers, too_large, topic } = again;
    for (count, reason, fix) in [
        (headers, "their headers are invalid", fix_headers),
        (too_large, "they are larger than the relay allows", &raise),
        (topic, "the name of their topic is invalid or not allowed", allow),
    ] {
        if count > 0 {
            let events = counted(count, "event");
            output::aside(format_args!("warning: {events} will be rejected again: {reason}. Fix: {fix}."));
        }
    }
    Ok(())
}

/// Performs the action, or previews it for a dry run, and prints the counts. It does not process events that are rejected meanwhile.
fn perform(file: &ConfigFile, change: Change, requeued: Option<bool>, action: &Action) -> Result<(), Failed> {
    let config = file.load_for_database()?;
    let (form, question, privileges) = match action {
        Action::Requeue(_) => (Form::DeadLetter, "Requeue all selected dead letters", REQUEUE_PRIVILEGES),
        Action::Discard => (Form::DeadLetter, "Discard all selected dead letters", DISCARD_PRIVILEGES),
        Action::Retry => (Form::BlockedKey, "Apply retry to all blocked keys", RETRY_PRIVILEGES),
        Action::DeadLetter => (Form::BlockedKey, "Apply dead-letter to all blocked keys", UNBLOCK_PRIVILEGES),
    };
    let Change { filters, options } = change;
    let selection = filters.selection(form, requeued);
    options.check(!selection.is_all())?;
    let table = &config.outbox.table;
    options.confirm(&format!("{question} of {table}?"))?;
    let repeats = matches!(action, Action::Requeue(_)) && requeued.is_none();
    let changed = on_outbox(&config, privileges, async |outbox| {
        let rejected = rejected(outbox, selection);
        let up_to = rejected.highest_id().await?;
        if let Action::Requeue(changes) = action {
            let first = Batch { after: i64::MIN, up_to, rows: options.most() };
            check_requeue(&rejected, &config, changes, first).await?;
        }
        if options.dry_run {
            if !options.json {
                for event in &rejected.oldest(up_to, options.most().min(PREVIEW_ROWS)).await? {
                    output::line(&event.text())?;
                }
            }
            return Ok(rejected.count(up_to, options.most()).await?);
        }
        let batch = async |batch| rejected.act(action, batch).await;
        in_batches(options.most().unsigned_abs(), up_to, repeats, batch).await
    })?;
    print_changed(action, &options, table, changed)?;
    if changed.all() == 0 && !options.json {
        output::note(&no_match(form, requeued));
    }
    Ok(())
}

fn print_changed(
    action: &Action,
    options: &ChangeOptions,
    table: &TableName,
    Changed { events, lifted, .. }: Changed,
) -> Result<(), Failed> {
    let (name, field, what, done) = match action {
        Action::Requeue(_) => ("requeue", "dead_letters", "dead letter", "requeued"),
        Action::Discard => ("discard", "dead_letters", "dead letter", "discarded"),
        Action::Retry => ("retry", "blocked_keys", "rejected event", "retried"),
        Action::DeadLetter => ("dead-letter", "blocked_keys", "rejected event", "moved to the dead letters"),
    };
    if options.json {
        let mut object: Vec<(_, Value)> =
            vec![("act", name.into()), ("dry_run", options.dry_run.into()), (field, events.into())];
        object.extend((field == "blocked_keys").then(|| ("lifted", lifted.into())));
        return output::text(output::json(&Object(object))? + "\n");
    }
    let (auxiliary, lifted_as) = match (options.dry_run, action) {
        (true, _) => ("would be ", "would be unblocked"),
        (false, Action::Retry) => ("will be ", "unblocked"),
        (false, _) => ("", "unblocked"),
    };
    let gone = match lifted {
        0 => String::new(),
        _ => format!("; {} {lifted_as} because the event no longer exists", counted(lifted, "key")),
    };
    output::text(format!("{table}: {} {auxiliary}{done}{gone}\n", counted(events, what)))
}

/// What the operator reads if nothing was changed.
fn no_match(form: Form, requeued: Option<bool>) -> String {
    let (what, command) = form.choose(("dead letter", "dead-letters"), ("blocked key", "blocked-keys"));
    let skipped =
        if requeued == Some(false) { " Requeued ones are skipped unless --again is set." } else { "" };
    format!("No {what} matches.{skipped} To list all, run: outbox-relay {command} list")
}

/// Repeats `batch`, each in its own transaction, until no ID up to `up_to` is left or `most` are done. If a batch fails, earlier
/// ones stay committed, and the error contains the number of their events. `repeats` means that the command would process these
/// again.
async fn in_batches(
    most: u64,
    up_to: i64,
    repeats: bool,
    mut batch: impl AsyncFnMut(Batch) -> Result<Changed, PostgresFault>,
) -> Result<Changed, Failed> {
    let (mut total, mut after) = (Changed::default(), i64::MIN);
    while total.all() < most {
        let rows = BATCH_ROWS.min(most - total.all()) as i64;
        let changed = batch(Batch { after, up_to, rows }).await;
        let changed = changed.map_err(|fault| stopped(fault, total.all(), repeats))?;
        let Some(last) = changed.last else { break };
        total.events += changed.events;
        total.lifted += changed.lifted;
        after = last;
    }
    Ok(total)
}

/// Adds to the fault of a batch how many events were done before, and how to continue.
fn stopped(fault: PostgresFault, done: u64, repeats: bool) -> Failed {
    // The connection may have been lost after the commit.
    let is_unknown = repeats && fault.kind == FaultKind::Unavailable;
    if done == 0 && !is_unknown {
        return fault.into();
    }
    let unknown = if is_unknown { " Events of the batch that failed may have been requeued." } else { "" };
    let rest = match repeats {
        false => "Fix the cause, then run the command again for the rest".to_owned(),
        true => format!(
            "Fix the cause.{unknown} The same command would requeue events again, because of --again: pass the IDs of \
             the rest with --id. `outbox-relay dead-letters list` shows when each was requeued"
        ),
    };
    let done = counted(done, "event");
    let context = format!("stopped after {done} had been processed and recorded. {rest}");
    Failed::from(fault).map(|error| error.context(context))
}

impl Entry for RejectedEvent {
    fn id(&self) -> i64 {
        self.id
    }

    /// Without headers and payload.
    fn text(&self) -> String {
        let RejectedEvent { id, event_id, .. } = self;
        let (rejected_at, rest) = match self.details {
            Details::DeadLetter { rejected_at, requeued_at, payload_bytes } => {
                let payload = payload_bytes.map_or("tombstone".to_owned(), bytes);
                let requeued = requeued_at.map(|at| format!("  requeued {}", time(at))).unwrap_or_default();
                (rejected_at, format!("  {payload}{requeued}"))
            }
            Details::BlockedKey { blocked_at, event_gone, .. } => {
                let gone = if event_gone { "  event gone (marked as sent or deleted manually)" } else { "" };
                (blocked_at, gone.to_owned())
            }
        };
        format!(
            "{id}  {rejected}  {reason}  {topic}  key {key}  event {event_id}{rest}",
            rejected = time(rejected_at),
            reason = in_line(&self.reason, 100),
            topic = in_line(&self.topic, 249),
            key = in_line(&self.aggregate_id, 100),
        )
    }
}

fn bytes(count: i32) -> String {
    counted(count.unsigned_abs().into(), "byte")
}

impl Entry for Act {
    fn id(&self) -> i64 {
        self.id
    }

    fn text(&self) -> String {
        let about = match self.pause_id {
            Some(pause) => pause_in_line(self, pause),
            None => event_in_line(self),
        };
        let role = in_line(&self.role, 63);
        // The role that logged in, and the one that it acted as.
        let who = match &self.login {
            Some(login) if *login != self.role => format!("{} as {role}", in_line(login, 63)),
            _ => role,
        };
        let address = self.address.as_deref();
        format!(
            "{at}  {who}  {what}{about}  from {application} {address}",
            at = time(self.at),
            what = in_line(&self.act, 20),
            application = in_line(&self.application, 63),
            address = address.map_or("over a Unix socket".to_owned(), |address| format!("at {address}")),
        )
    }
}

fn event_in_line(act: &Act) -> String {
    let letter = act.dead_letter_id.map(|id| format!("  dead letter {id}")).unwrap_or_default();
    format!(
        "{letter}  outbox row {row}  event {event}  {topic}  {reason}",
        row = act.outbox_id.unwrap_or_default(),
        event = act.event_id.unwrap_or_default(),
        topic = in_line(act.topic.as_deref().unwrap_or_default(), 249),
        reason = in_line(act.reason.as_deref().unwrap_or_default(), 100),
    )
}

fn pause_in_line(act: &Act, pause: i64) -> String {
    let of = match (&act.topic, &act.aggregate_type) {
        (Some(topic), _) => format!("topic {}", in_line(topic, 249)),
        (None, Some(aggregate_type)) => format!("a key of {}", in_line(aggregate_type, 100)),
        (None, None) => "everything".to_owned(),
    };
    let reason =
        act.reason.as_deref().map(|reason| format!("  {}", in_line(reason, 200))).unwrap_or_default();
    format!("  pause {pause}  {of}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres::connection::errors::unavailable;

    #[tokio::test]
    async fn each_batch_continues_after_the_last_id_up_to_the_limit() {
        let mut batches = Vec::new();
        let batch = async |batch: Batch| {
            batches.push(batch);
            let Batch { after, rows, .. } = batch;
            Ok(Changed { events: rows as u64 - 1, lifted: 1, last: Some(after.max(0) + rows) })
        };
        let total = in_batches(250, 1_000, false, batch).await.unwrap();
        assert_eq!(total, Changed { events: 247, lifted: 3, last: None });
        let of = |after, rows| Batch { after, up_to: 1_000, rows };
        assert_eq!(batches, [of(i64::MIN, 100), of(100, 100), of(200, 50)]);
    }

    #[tokio::test]
    async fn an_error_has_the_number_of_events_done_before() {
        let again = "Fix the cause. Events of the batch that failed may have been requeued. The same command would \
                     requeue events again, because of --again: pass the IDs of the rest with --id. `outbox-relay \
                     dead-letters list` shows when each was requeued";
        let after = |done| format!("stopped after {done} events had been processed and recorded. {again}: ");
        let simple = "stopped after 7 events had been processed and recorded. Fix the cause, then run the command again \
                      for the rest: ";
        for (done, repeats, context) in
            [(7, false, simple), (7, true, &after(7)), (0, false, ""), (0, true, &after(0))]
        {
            let batch = async |batch: Batch| match batch.after {
                i64::MIN if done > 0 => Ok(Changed { events: done, lifted: 0, last: Some(7) }),
                _ => Err(unavailable("requeueing", "gone")),
            };
            let Err(Failed::Unavailable(error)) = in_batches(100, 7, repeats, batch).await else { panic!() };
            assert_eq!(format!("{error:#}"), format!("{context}requeueing failed: gone"));
        }

        let refused = || PostgresFault { kind: FaultKind::Refused, ..unavailable("requeueing", "gone") };
        let ended = in_batches(100, 7, true, async |_: Batch| Err(refused())).await;
        let Err(Failed::Failure(error)) = ended else { panic!() };
        assert_eq!(format!("{error:#}"), "requeueing failed: gone");
    }
}
