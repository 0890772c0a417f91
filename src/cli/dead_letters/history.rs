//! `outbox-relay dead-letters history`.

use crate::cli::arguments::selection::{ListOptions, event_id};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::output::{self, in_line, time};
use crate::cli::{ConfigFile, block_on};
use clap::Args;
use postgres::access::grants::HISTORY_PRIVILEGES;
use postgres::operate::rejected::{Act, PostgresActs};
use serde::Serialize;
use uuid::Uuid;

/// List operator actions, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows who requeued or discarded dead letters, retried or dead-lettered blocked keys, replayed events, and paused or resumed publishing. \
The action `lift` means that a key was unblocked because its event no longer existed. Each line shows the time, the role that logged in (and the one that SET ROLE has set, if it differs), \
action, dead letter, outbox row, event_id, topic, reason, and the application_name and address of the connection. For a \
pause, it shows the ID, scope and reason of the pause, but not the key of a paused key, because keys are not recorded.

Each action and its record are committed in the same transaction, also if the action was performed in psql. Records are \
never deleted, even if their dead letter is discarded.

Fields of --json: id, at, login (null for acts of earlier versions), role, application, address (null for a socket), act, dead_letter_id (or null), outbox_id, \
event_id, pause_id, aggregate_type, topic, reason. For pause and resume, outbox_id and event_id are null, and \
aggregate_type and topic contain the scope, without the key. For other actions, pause_id is null.

Examples:
  outbox-relay dead-letters history --config config.toml
  outbox-relay dead-letters history --config config.toml --json --limit 1000 | jq -r .login | sort | uniq -c

Exit codes: 0 success, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid configuration or schema, or \
missing privileges.")]
pub(crate) struct History {
    #[command(flatten)]
    config: ConfigFile,
    /// Only actions on this event.
    #[arg(long, value_name = "UUID", value_parser = event_id)]
    event_id: Option<Uuid>,
    #[command(flatten)]
    options: ListOptions,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    id: i64,
    at: String,
    login: Option<&'a str>,
    role: &'a str,
    application: &'a str,
    address: Option<&'a str>,
    act: &'a str,
    dead_letter_id: Option<i64>,
    outbox_id: Option<i64>,
    event_id: Option<String>,
    pause_id: Option<i64>,
    aggregate_type: Option<&'a str>,
    topic: Option<&'a str>,
    reason: Option<&'a str>,
}

impl History {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let show = |act: &Act| {
            Ok((act.id, if self.options.json { output::json(&line(act))? } else { describe(act) }))
        };
        block_on(async {
            let database = one_shot::database(&config)?;
            one_shot::allowed(&config, &database, HISTORY_PRIVILEGES).await?;
            let acts = PostgresActs::new(database, config.outbox.table.clone());
            let page = async |before, rows| acts.history(self.event_id, before, rows).await;
            output::list(&self.options, "no actions", page, show).await
        })?
    }
}

fn line(act: &Act) -> Line<'_> {
    Line {
        id: act.id,
        at: time(act.at),
        login: act.login.as_deref(),
        role: &act.role,
        application: &act.application,
        address: act.address.as_deref(),
        act: &act.act,
        dead_letter_id: act.dead_letter_id,
        outbox_id: act.outbox_id,
        event_id: act.event_id.map(|id| id.to_string()),
        pause_id: act.pause_id,
        aggregate_type: act.aggregate_type.as_deref(),
        topic: act.topic.as_deref(),
        reason: act.reason.as_deref(),
    }
}

fn describe(act: &Act) -> String {
    let about = match act.pause_id {
        Some(pause) => pause_in_line(act, pause),
        None => event_in_line(act),
    };
    format!(
        "{at}  {who}  {what}{about}  from {application} {address}",
        at = time(act.at),
        who = who(act),
        what = in_line(&act.act, 20),
        application = in_line(&act.application, 63),
        address =
            act.address.as_deref().map_or("over a Unix socket".to_owned(), |address| format!("at {address}")),
    )
}

/// The role that logged in, and the one that it acted as.
fn who(act: &Act) -> String {
    let role = in_line(&act.role, 63);
    match &act.login {
        Some(login) if *login != act.role => format!("{} as {role}", in_line(login, 63)),
        _ => role.clone(),
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
