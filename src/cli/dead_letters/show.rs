//! `outbox-relay dead-letters show`: the only command that prints the payload of an event.

use super::list::Line;
use super::open;
use crate::cli::arguments::selection::number;
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::output::{self, counted, in_line, time};
use crate::cli::{ConfigFile, block_on};
use clap::Args;
use postgres::access::grants::LETTER_PRIVILEGES;
use postgres::operate::rejected::WholeDeadLetter;
use serde::Serialize;
use serde_json::Value;
use std::io::IsTerminal;

/// Show a dead letter with its headers and payload.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the event to stdout. No other command prints payloads. Control characters, which could control your terminal, \
are escaped, as \\u001b or \\xff. --payload writes nothing for a tombstone, and the unchanged bytes of the payload unless stdout is a \
terminal. --raw escapes nothing in the payload.

Fields of --json: those of `list`, plus created_at, headers (an object, or null), payload, payload_encoding (\"utf-8\", \
\"hex\" for binary data, or null for a tombstone).

Examples:
  outbox-relay dead-letters show --config config.toml 17
  outbox-relay dead-letters show --config config.toml 17 --payload > payload.json

Exit codes: 0 success, 1 no such dead letter, or failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, \
or missing privileges.")]
pub(crate) struct Show {
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

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Whole {
    #[serde(flatten)]
    line: Line,
    created_at: String,
    headers: Value,
    payload: Option<String>,
    payload_encoding: Option<&'static str>,
}

impl Whole {
    fn new(whole: &WholeDeadLetter) -> Whole {
        let encoded = whole.payload.as_deref().map(|bytes| match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), "utf-8"),
            Err(_) => (bytes.iter().map(|byte| format!("{byte:02x}")).collect(), "hex"),
        });
        let (payload, payload_encoding) = encoded.unzip();
        Whole {
            line: Line::new(&whole.letter),
            created_at: whole.created_at.clone(),
            headers: whole.headers.as_deref().map_or(Value::Null, headers),
            payload,
            payload_encoding,
        }
    }
}

/// The headers as JSON, or as text if they cannot be parsed, for example because of a number that is out of range.
fn headers(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|_| Value::String(json.to_owned()))
}

impl Show {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let whole = block_on(async {
            open(&config, LETTER_PRIVILEGES).await?.whole(self.id).await.map_err(one_shot::fault)
        })??;
        let Some(whole) = whole else {
            let (table, id) = (&config.outbox.table, self.id);
            return Err(Failed::Failure(anyhow::anyhow!(
                "{table} has no dead letter {id}. To list all, run: outbox-relay dead-letters list"
            )));
        };
        if self.json {
            return output::line(&output::json(&Whole::new(&whole))?).map(|_| ());
        }
        let is_raw = self.raw || self.payload && !std::io::stdout().is_terminal();
        let print = if is_raw { output::raw } else { output::print };
        let payload = whole.payload.as_deref();
        if self.payload {
            return print(payload.unwrap_or_default()).map(|_| ());
        }
        output::print(text(&whole).as_bytes())?;
        payload.map_or(Ok(()), |payload| print(&[b"\n", payload, b"\n"].concat()).map(|_| ()))
    }
}

/// Everything before the payload.
fn text(whole: &WholeDeadLetter) -> String {
    let letter = &whole.letter;
    let cut = usize::MAX;
    let mut text = String::new();
    for (name, value) in [
        ("dead letter", letter.id.to_string()),
        ("event", letter.event_id.to_string()),
        ("aggregate type", in_line(&letter.aggregate_type, cut)),
        ("key", in_line(&letter.aggregate_id, cut)),
        ("event type", in_line(&letter.event_type, cut)),
        ("created", whole.created_at.clone()),
        ("outbox row", letter.outbox_id.to_string()),
        ("topic", in_line(&letter.topic, cut)),
        ("rejected", time(letter.rejected_at)),
        ("reason", in_line(&letter.reason, cut)),
        ("error", in_line(&letter.error, cut)),
        ("requeued", letter.requeued_at.map_or("never".to_owned(), time)),
        ("headers", in_line(whole.headers.as_deref().unwrap_or("none"), cut)),
        (
            "payload",
            letter
                .payload_bytes
                .map_or("none (tombstone)".to_owned(), |n| counted(n.unsigned_abs().into(), "byte")),
        ),
    ] {
        text.push_str(&format!("{name:<15} {value}\n"));
    }
    text
}
