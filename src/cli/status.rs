//! `outbox-relay status`: how an outbox stands, from the database alone.

use super::exit::Failed;
use super::output::in_line;
use super::{ConfigFile, block_on, blocked_keys, one_shot, pauses};
use crate::postgres::pauses::{PausedScope, Scope};
use crate::postgres::status::{
    BACKLOG_COUNTED_MAX, BLOCKED_KEYS_COUNTED_MAX, DEAD_LETTERS_COUNTED_MAX, OutboxStatus, PostgresStatus,
};
use crate::relay::reason::remedy;
use clap::Args;
use humantime::{format_duration, format_rfc3339_seconds};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, SystemTime};

/// Show how far behind the outbox is, what it waits for, and why.
#[derive(Debug, Args)]
#[command(after_help = "\
Asks the database only, so it also works when no relay runs and when Kafka is away. Every question is bounded: it can \
be asked of a table of any size.

Examples:
  outbox-relay status --config /etc/outbox-relay/config.toml
  outbox-relay status --config config.toml --json | jq .backlog.oldest_age_seconds

Exit codes: 0 shown, whatever it says, 2 usage, 69 Postgres cannot be reached, 78 the configuration or the schema has \
to be mended.")]
pub struct Status {
    #[command(flatten)]
    config: ConfigFile,
    /// Print one JSON object: fields may be added in later versions, none is renamed or removed.
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let status = block_on(async {
            let database = one_shot::database(&config)?;
            one_shot::checked(&config, &database).await?;
            let status = PostgresStatus::new(database, config.outbox.table.clone());
            status.read().await.map_err(one_shot::fault)
        })??;
        let report = Report::new(config.outbox.table.to_string(), &status);
        if self.json {
            let json = serde_json::to_string_pretty(&report)
                .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("writing JSON")))?;
            println!("{json}");
        } else {
            print!("{report}");
        }
        Ok(())
    }
}

/// The object of `--json`. Times are RFC 3339, durations seconds, sizes bytes.
#[derive(Debug, Serialize)]
struct Report {
    table: String,
    postgres_version: String,
    backlog: Backlog,
    held_topics: Vec<Held>,
    blocked_keys: BlockedKeys,
    paused: Vec<Paused>,
    dead_letters: DeadLetters,
    relays: Relays,
    vacuum_held_back_by: Option<HeldBack>,
    size: Size,
}

#[derive(Debug, Serialize)]
struct Backlog {
    rows: i64,
    /// Beyond a limit the rows are not counted, but estimated from their ids.
    estimated: bool,
    oldest_age_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Held {
    topic: String,
    reason: String,
    error: String,
    remedy: &'static str,
    since: String,
    next_probe: String,
    probes: i32,
}

#[derive(Debug, Serialize)]
struct BlockedKeys {
    keys: i64,
    /// There are more: no further was counted.
    at_least: bool,
    /// At most 5.
    oldest: Vec<Blocked>,
}

#[derive(Debug, Serialize)]
struct Blocked {
    topic: String,
    key: String,
    outbox_id: i64,
    reason: String,
    remedy: &'static str,
    since: String,
}

/// At most 100 are listed.
#[derive(Debug, Serialize)]
struct Paused {
    id: i64,
    /// everything, topic or key.
    scope: &'static str,
    topic: Option<String>,
    aggregate_type: Option<String>,
    key: Option<String>,
    reason: Option<String>,
    by: String,
    since: String,
    /// For people.
    #[serde(skip)]
    name: String,
}

impl Paused {
    fn new(pause: &PausedScope) -> Paused {
        let (scope, topic, aggregate_type, key) = match pause.scope.clone() {
            Scope::Everything => ("everything", None, None, None),
            Scope::Topic(topic) => ("topic", Some(topic), None, None),
            Scope::Key { aggregate_type, aggregate_id } => {
                ("key", None, Some(aggregate_type), Some(aggregate_id))
            }
        };
        Paused {
            id: pause.id,
            scope,
            topic,
            aggregate_type,
            key,
            reason: pause.reason.clone(),
            by: pause.role.clone(),
            since: format_rfc3339_seconds(pause.since).to_string(),
            name: pauses::name(&pause.scope),
        }
    }
}

#[derive(Debug, Serialize)]
struct DeadLetters {
    rows: i64,
    /// There are more: only the latest were counted.
    at_least: bool,
    by_reason: Vec<Reason>,
}

#[derive(Debug, Serialize)]
struct Reason {
    reason: String,
    rows: i64,
}

#[derive(Debug, Serialize)]
struct Relays {
    application_name: String,
    connections: i64,
    addresses: i64,
}

#[derive(Debug, Serialize)]
struct HeldBack {
    what: String,
    name: String,
    transactions: i32,
    age_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Size {
    table_bytes: i64,
    index_bytes: i64,
    rows_estimated: i64,
    dead_rows_estimated: i64,
    vacuumed_at: Option<String>,
}

impl Report {
    fn new(table: String, status: &OutboxStatus) -> Report {
        let time = |at: SystemTime| format_rfc3339_seconds(at).to_string();
        let held = |held: &crate::postgres::status::HeldTopic| Held {
            topic: held.topic.clone(),
            reason: held.reason.clone(),
            error: held.error.clone(),
            remedy: remedy(&held.reason),
            since: time(held.since),
            next_probe: time(held.next_probe),
            probes: held.probes,
        };
        let blocked = |blocked: &crate::postgres::status::Blocked| Blocked {
            topic: blocked.topic.clone(),
            key: blocked.key.clone(),
            outbox_id: blocked.outbox_id,
            reason: blocked.reason.clone(),
            remedy: blocked_keys::remedy(&blocked.reason),
            since: time(blocked.since),
        };
        let dead: i64 = status.dead_letters.iter().map(|(_, rows)| rows).sum();
        let reason = |(reason, rows): &(String, i64)| Reason { reason: reason.clone(), rows: *rows };
        Report {
            table,
            postgres_version: status.server_version.clone(),
            backlog: Backlog {
                rows: status.backlog_rows,
                estimated: status.backlog_rows > BACKLOG_COUNTED_MAX,
                oldest_age_seconds: status.oldest.map(|age| age.as_secs_f64()),
            },
            held_topics: status.held.iter().map(held).collect(),
            blocked_keys: BlockedKeys {
                keys: status.blocked_keys,
                at_least: status.blocked_keys >= BLOCKED_KEYS_COUNTED_MAX,
                oldest: status.blocked.iter().map(blocked).collect(),
            },
            paused: status.paused.iter().map(Paused::new).collect(),
            dead_letters: DeadLetters {
                rows: dead,
                at_least: dead >= DEAD_LETTERS_COUNTED_MAX,
                by_reason: status.dead_letters.iter().map(reason).collect(),
            },
            relays: Relays {
                application_name: status.application_name.clone(),
                connections: status.relay_connections,
                addresses: status.relay_addresses,
            },
            vacuum_held_back_by: status.vacuum.as_ref().map(|held| HeldBack {
                what: held.what.clone(),
                name: held.name.clone(),
                transactions: held.transactions,
                age_seconds: held.age.map(|age| age.as_secs_f64()),
            }),
            size: Size {
                table_bytes: status.size.table_bytes,
                index_bytes: status.size.index_bytes,
                rows_estimated: status.size.rows,
                dead_rows_estimated: status.size.dead_rows,
                vacuumed_at: status.size.vacuumed_at.map(time),
            },
        }
    }
}

/// One screen.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "outbox        {} on PostgreSQL {}", self.table, self.postgres_version)?;
        let about = if self.backlog.estimated { "about " } else { "" };
        let oldest = self.backlog.oldest_age_seconds;
        let oldest = oldest.map(|age| format!(", the oldest {} old", span(age))).unwrap_or_default();
        writeln!(f, "unsent        {about}{} rows{oldest}", self.backlog.rows)?;
        match self.relays.connections {
            0 => writeln!(f, "relays        none is connected as {:?}", self.relays.application_name)?,
            connections => writeln!(
                f,
                "relays        {connections} connections as {:?} from {} addresses",
                self.relays.application_name, self.relays.addresses
            )?,
        }
        self.fmt_paused(f)?;
        self.fmt_held(f)?;
        self.fmt_blocked(f)?;
        let plus = if self.dead_letters.at_least { "at least " } else { "" };
        writeln!(f, "dead letters  {plus}{}", self.dead_letters.rows)?;
        for reason in &self.dead_letters.by_reason {
            writeln!(f, "              {} {}", reason.rows, reason.reason)?;
        }
        if self.dead_letters.rows > 0 {
            writeln!(
                f,
                "      what to do: look with `outbox-relay dead-letters list`, then requeue or discard"
            )?;
        }
        match &self.vacuum_held_back_by {
            None => writeln!(f, "vacuum        held back by nothing")?,
            Some(by) => {
                let age = by.age_seconds.map(|age| format!(", {} old", span(age))).unwrap_or_default();
                writeln!(
                    f,
                    "vacuum        held back by {} {}{age}, {} transactions",
                    by.what, by.name, by.transactions
                )?;
            }
        }
        let size = &self.size;
        writeln!(
            f,
            "size          table {}, indexes {}, about {} rows and {} dead ones",
            bytes(size.table_bytes),
            bytes(size.index_bytes),
            size.rows_estimated,
            size.dead_rows_estimated
        )?;
        writeln!(f, "vacuumed      {}", size.vacuumed_at.as_deref().unwrap_or("never"))
    }
}

impl Report {
    fn fmt_paused(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.paused.is_empty() {
            return writeln!(f, "paused        nothing");
        }
        writeln!(f, "paused        {} by operators; the events wait, all others flow", self.paused.len())?;
        for pause in &self.paused {
            let reason = pause.reason.as_deref().map(|reason| format!(": {}", in_line(reason, 200)));
            let reason = reason.unwrap_or_default();
            writeln!(f, "  {}  by {} since {}{reason}", pause.name, in_line(&pause.by, 63), pause.since)?;
        }
        writeln!(f, "      what to do: when the reason is gone, `outbox-relay resume`")
    }

    fn fmt_held(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.held_topics.is_empty() {
            return writeln!(f, "held topics   none");
        }
        writeln!(f, "held topics   {}; their rows wait, all others flow", self.held_topics.len())?;
        for held in &self.held_topics {
            writeln!(f, "  {}  {} since {}", held.topic, held.reason, held.since)?;
            writeln!(f, "      {}", held.error.lines().next().unwrap_or_default())?;
            writeln!(f, "      tried {} times, again at {}", held.probes, held.next_probe)?;
            writeln!(f, "      what to do: {}", held.remedy)?;
        }
        Ok(())
    }

    fn fmt_blocked(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocked = &self.blocked_keys;
        if blocked.keys == 0 {
            return writeln!(f, "blocked keys  none");
        }
        let plus = if blocked.at_least { "at least " } else { "" };
        writeln!(
            f,
            "blocked keys  {plus}{}; their events wait behind a refused one, all others flow",
            blocked.keys
        )?;
        for key in &blocked.oldest {
            writeln!(
                f,
                "  {}  key {}, row {}  {} since {}",
                in_line(&key.topic, 249),
                in_line(&key.key, 100),
                key.outbox_id,
                in_line(&key.reason, 100),
                key.since
            )?;
            writeln!(f, "      what to do: {}", key.remedy)?;
        }
        if blocked.keys > blocked.oldest.len() as i64 {
            writeln!(f, "  and more, which `outbox-relay blocked-keys list` shows")?;
        }
        Ok(())
    }
}

/// Whole milliseconds below a second, whole seconds above.
fn span(seconds: f64) -> impl fmt::Display {
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let rounded = if duration < Duration::from_secs(1) {
        Duration::from_millis(duration.as_millis() as u64)
    } else {
        Duration::from_secs(duration.as_secs())
    };
    format_duration(rounded)
}

fn bytes(bytes: i64) -> String {
    let (kib, mib) = (bytes / 1_024, bytes as f64 / 1_048_576.0);
    if mib < 1.0 {
        format!("{kib} KiB")
    } else if mib < 1_024.0 {
        format!("{mib:.1} MiB")
    } else {
        format!("{:.1} GiB", mib / 1_024.0)
    }
}
