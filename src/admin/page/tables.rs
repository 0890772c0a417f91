//! The tables of the page: what waits, who works, and the table itself.

use crate::status::report::{Paused, Report};
use relay::reason::{fix, reason};
use settings::text::{bytes, command, counted, in_line, seconds, thousands};

/// The longest name of a topic.
const TOPIC: usize = 249;
const TEXT: usize = 200;
const ERROR: usize = 1_000;
const KEY_HIDDEN: &str = "hidden";

/// A table, or the text that stands for an empty one.
pub(super) struct Table {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Below the title.
    pub(super) about: String,
    pub(super) empty: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Row>,
    /// Below the table: the next command.
    pub(super) next: Option<String>,
}

/// The first cell is the header of the row.
pub(super) struct Row {
    pub(super) head: Field,
    pub(super) fields: Vec<Field>,
}

pub(super) struct Field {
    pub(super) text: String,
    /// The name of its column, for narrow screens.
    pub(super) column: &'static str,
    /// A name, a key or a command, in a fixed-width font.
    pub(super) is_code: bool,
    /// A number or a time, which stays on one line.
    pub(super) is_short: bool,
    /// Smaller lines below the text.
    pub(super) notes: Vec<String>,
}

impl Field {
    fn text(text: impl Into<String>) -> Field {
        Field { text: text.into(), column: "", is_code: false, is_short: false, notes: Vec::new() }
    }

    fn short(text: impl Into<String>) -> Field {
        Field { is_short: true, ..Field::text(text) }
    }

    fn code(text: &str, most: usize) -> Field {
        Field { is_code: true, ..Field::text(in_line(text, most)) }
    }

    fn noted(self, notes: impl IntoIterator<Item = String>) -> Field {
        Field { notes: notes.into_iter().collect(), ..self }
    }
}

impl Table {
    fn row(&mut self, fields: impl IntoIterator<Item = Field>) {
        let named = fields.into_iter().zip(self.columns);
        let mut fields: Vec<Field> = named.map(|(field, column)| Field { column, ..field }).collect();
        if !fields.is_empty() {
            let head = fields.remove(0);
            self.rows.push(Row { head, fields });
        }
    }
}

/// `2026-11-23 13:47:05 UTC` instead of `2026-11-23T13:47:05Z`.
pub(super) fn utc(time: &str) -> String {
    time.strip_suffix('Z').map_or_else(|| time.to_owned(), |time| time.replace('T', " ") + " UTC")
}

/// What waits, and what needs an operator.
pub(super) fn waiting(report: &Report, shows_keys: bool) -> Vec<Table> {
    vec![paused(report, shows_keys), held(report), blocked(report, shows_keys), dead_letters(report)]
}

fn paused(report: &Report, shows_keys: bool) -> Table {
    let mut table = Table {
        id: "pauses",
        title: "Pauses",
        about: String::new(),
        empty: "Nothing is paused.",
        columns: &["Scope", "Reason", "By", "Since"],
        rows: Vec::new(),
        next: (!report.paused.is_empty()).then(|| command("resume")),
    };
    for pause in &report.paused {
        table.row([
            Field::text(scope(pause, shows_keys)),
            Field::text(in_line(pause.reason.as_deref().unwrap_or("none given"), TEXT)),
            Field::text(in_line(&pause.by, TEXT)),
            Field::short(utc(&pause.since)),
        ]);
    }
    table
}

fn scope(pause: &Paused, shows_keys: bool) -> String {
    match (&pause.aggregate_type, shows_keys) {
        (Some(aggregate_type), false) => format!("a key of {}", in_line(aggregate_type, TEXT)),
        _ => pause.name.clone(),
    }
}

fn held(report: &Report) -> Table {
    let mut table = Table {
        id: "held-topics",
        title: "Held topics",
        about: oldest_of(report.held_topics.len(), report.held_topics_total),
        empty: "No topic is held.",
        columns: &["Topic", "Reason", "Since", "Next probe"],
        rows: Vec::new(),
        next: None,
    };
    for held in &report.held_topics {
        let error = held.error.lines().next().unwrap_or_default();
        table.row([
            Field::code(&held.topic, TOPIC),
            Field::text(in_line(&held.reason, TEXT)).noted([in_line(error, ERROR), plain(&fix(held.remedy))]),
            Field::short(utc(&held.since)),
            Field::short(utc(&held.next_probe)).noted([format!("{} so far", counted_probes(held.probes))]),
        ]);
    }
    table
}

/// Without the marks around commands and names.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

fn counted_probes(probes: i32) -> String {
    counted(u64::from(probes.unsigned_abs()), "probe")
}

/// What a table shows, if it does not show everything.
fn oldest_of(shown: usize, all: i64) -> String {
    let all = all.unsigned_abs() as usize;
    if all > shown { format!("Showing the oldest {shown} of {}.", thousands(all)) } else { String::new() }
}

fn blocked(report: &Report, shows_keys: bool) -> Table {
    let blocked = &report.blocked_keys;
    let mut table = Table {
        id: "blocked-keys",
        title: "Blocked keys",
        about: oldest_of(blocked.oldest.len(), blocked.keys),
        empty: "No key is blocked.",
        columns: &["Key", "Topic", "Reason", "Row", "Since"],
        rows: Vec::new(),
        next: (blocked.keys > 0).then(|| command("blocked-keys list")),
    };
    for key in &blocked.oldest {
        let name = if shows_keys { Field::code(&key.key, TEXT) } else { Field::text(KEY_HIDDEN) };
        table.row([
            name,
            Field::code(&key.topic, TOPIC),
            Field::text(in_line(&key.reason, TEXT)).noted([plain(&fix(key.remedy))]),
            Field::short(key.outbox_id.to_string()),
            Field::short(utc(&key.since)),
        ]);
    }
    table
}

fn dead_letters(report: &Report) -> Table {
    let dead = &report.dead_letters;
    let mut table = Table {
        id: "dead-letters",
        title: "Dead letters",
        about: if dead.at_least {
            "Only the latest dead letters are counted.".to_owned()
        } else {
            String::new()
        },
        empty: "There are no dead letters.",
        columns: &["Reason", "Events", "Meaning"],
        rows: Vec::new(),
        next: (dead.rows > 0).then(|| command("dead-letters list")),
    };
    for by_reason in &dead.by_reason {
        let means = reason(&by_reason.reason).map_or("", |reason| reason.means);
        table.row([
            Field::text(in_line(&by_reason.reason, TEXT)),
            Field::short(thousands(by_reason.rows.unsigned_abs() as usize)),
            Field::text(plain(means)),
        ]);
    }
    table
}

/// Who works.
pub(super) fn relays(report: &Report) -> Table {
    let relays = &report.relays;
    let connections = counted(relays.connections as u64, "connection");
    let pooled = if relays.pooled { " They belong to a pooler, not to the relays." } else { "" };
    let mut table = Table {
        id: "relays",
        title: "Relays",
        about: format!("{connections} as {}.{pooled}", in_line(&relays.application_name, TEXT)),
        empty: "No relay is connected.",
        columns: &["Application", "Address", "Connections"],
        rows: Vec::new(),
        next: None,
    };
    for place in relays.places() {
        table.row([
            Field::text(in_line(place.name, TEXT)),
            Field::code(place.address, TEXT),
            Field::text(place.activities()),
        ]);
    }
    table
}

/// The table itself.
pub(super) fn outbox(report: &Report) -> Table {
    let mut table = Table {
        id: "outbox",
        title: "Outbox",
        about: String::new(),
        empty: "",
        columns: &["Property", "Value"],
        rows: Vec::new(),
        next: None,
    };
    let size = &report.size;
    let rows = |rows: i64| thousands(rows.unsigned_abs() as usize);
    let schema = report.schema_migration.as_deref().unwrap_or("unknown");
    let reaper = &report.reaper;
    let oldest =
        reaper.oldest_sent_age_seconds.map(|age| format!("the oldest was sent {} ago", seconds(age)));
    let reaping = if reaper.enabled {
        format!("deletes events {} after they are sent", seconds(reaper.retention_seconds))
    } else {
        "off in this relay".to_owned()
    };
    let vacuum = match &report.vacuum_held_back_by {
        None => "not held back".to_owned(),
        Some(by) => {
            let age = by.age_seconds.map(|age| format!(", {} old", seconds(age))).unwrap_or_default();
            format!("held back by {} {}{age}", by.what, in_line(&by.name, TEXT))
        }
    };
    let behind = reaper.behind.then(|| "behind".to_owned());
    let vacuumed = size.vacuumed_at.as_deref().map_or_else(|| "never".to_owned(), utc);
    for (name, value) in [
        ("Server", Field::text(format!("PostgreSQL {}", in_line(&report.postgres_version, TEXT)))),
        ("Schema", Field::text(format!("at migration {}", in_line(schema, TEXT)))),
        (
            "Size",
            Field::text(format!("{} table, {} indexes", bytes(size.table_bytes), bytes(size.index_bytes))),
        ),
        (
            "Rows",
            Field::text(format!(
                "about {}, {} dead",
                rows(size.rows_estimated),
                rows(size.dead_rows_estimated)
            )),
        ),
        ("Reaper", Field::text(reaping).noted(oldest.into_iter().chain(behind))),
        ("Vacuum", Field::text(vacuum).noted([format!("last run: {vacuumed}")])),
    ] {
        table.row([Field::text(name), value]);
    }
    table
}
