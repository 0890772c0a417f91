//! `outbox-relay dead-letters history`: what operators have done.

use super::arguments::{ListOptions, event_id};
use super::frame::{ConfigFile, Failed, on_outbox};
use super::output::{Entry, Object, list};
use clap::Args;
use postgres::access::grants::HISTORY_PRIVILEGES;
use postgres::operate::rejected::{Act, PostgresActs};
use settings::text::{in_line, time};
use uuid::Uuid;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/dead-letters-history.txt").trim_ascii_end())]
pub(crate) struct History {
    #[command(flatten)]
    config: ConfigFile,
    /// Only actions on this event.
    #[arg(long, value_name = "UUID", value_parser = event_id)]
    event_id: Option<Uuid>,
    #[command(flatten)]
    options: ListOptions,
}

impl History {
    pub(super) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        on_outbox(&config, HISTORY_PRIVILEGES, async |outbox| {
            let acts = PostgresActs::new(outbox.database.clone(), outbox.table());
            let page = async |before, rows| acts.history(self.event_id, before, rows).await;
            list(&self.options, "no actions", page).await
        })
    }
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
        let address = self.address.as_deref();
        format!(
            "{at}  {who}  {what}{about}  from {application} {address}",
            at = time(self.at),
            who = who(self),
            what = in_line(&self.act, 20),
            application = in_line(&self.application, 63),
            address = address.map_or("over a Unix socket".to_owned(), |address| format!("at {address}")),
        )
    }

    fn json(&self) -> Object {
        Object(vec![
            ("id", self.id.into()),
            ("at", time(self.at).into()),
            ("login", self.login.as_deref().into()),
            ("role", self.role.as_str().into()),
            ("application", self.application.as_str().into()),
            ("address", self.address.as_deref().into()),
            ("act", self.act.as_str().into()),
            ("dead_letter_id", self.dead_letter_id.into()),
            ("outbox_id", self.outbox_id.into()),
            ("event_id", self.event_id.map(|id| id.to_string()).into()),
            ("pause_id", self.pause_id.into()),
            ("aggregate_type", self.aggregate_type.as_deref().into()),
            ("topic", self.topic.as_deref().into()),
            ("reason", self.reason.as_deref().into()),
        ])
    }
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
