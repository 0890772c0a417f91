//! Checks the columns of the outbox, and reads the type of the payload.

use std::fmt;
use std::str::FromStr;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::fault::{SchemaFault, SchemaFaultKind};
use crate::config;
use crate::postgres::table::TableName;

/// The type of the payload column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadType {
    /// JSON text as the application wrote it.
    Json,
    /// JSON as normalized by PostgreSQL. The binary format starts with a version byte.
    Jsonb,
    /// Any bytes.
    Bytea,
    /// Any text.
    Text,
}

impl PayloadType {
    /// The name of the type in SQL.
    fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Bytea => "bytea",
            Self::Text => "text",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Json, Self::Jsonb, Self::Bytea, Self::Text].into_iter().find(|known| known.name() == name)
    }
}

impl fmt::Display for PayloadType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PayloadType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::from_name(name).ok_or("use json, jsonb, text or bytea")
    }
}

struct Wanted {
    name: &'static str,
    /// The supported types, starting with the one of the migration.
    types: &'static [&'static str],
    not_null: bool,
}

const fn wanted(name: &'static str, types: &'static [&'static str], not_null: bool) -> Wanted {
    Wanted { name, types, not_null }
}

const TEXT: &[&str] = &["text", "character varying"];

const WANTED: [Wanted; 9] = [
    wanted("id", &["bigint"], true),
    wanted("event_id", &["uuid"], true),
    wanted("aggregate_type", TEXT, true),
    wanted("aggregate_id", TEXT, true),
    wanted("event_type", TEXT, true),
    wanted("payload", &["json", "jsonb", "bytea", "text"], false),
    wanted("headers", &["jsonb"], false),
    wanted("created_at", &["timestamp with time zone"], true),
    wanted("sent_at", &["timestamp with time zone"], false),
];

/// The column whose value wins over the topic template.
const TOPIC: &str = "topic";

/// Whether the outbox must have the column `topic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicColumn {
    /// It may be missing.
    Optional,
    /// `[outbox] topic_allow` is set.
    Required,
}

impl From<&config::Outbox> for TopicColumn {
    fn from(outbox: &config::Outbox) -> TopicColumn {
        if outbox.topic_allow.is_some() { TopicColumn::Required } else { TopicColumn::Optional }
    }
}

const READ: &str = "
SELECT attname::text, format_type(atttypid, NULL), attnotnull, atthasdef, attgenerated <> ''
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped";

const PAYLOAD_TYPE: &str = "
SELECT format_type(atttypid, NULL)
FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attname = 'payload' AND NOT attisdropped";

/// The current type of the payload column; `None` if the relay does not support it.
pub(crate) async fn payload_type(
    client: &Client,
    table: &TableName,
) -> Result<Option<PayloadType>, tokio_postgres::Error> {
    let rows = client.query_typed(PAYLOAD_TYPE, &[(&table.quoted(), Type::TEXT)]).await?;
    Ok(rows.first().and_then(|row| PayloadType::from_name(row.get(0))))
}

struct Column {
    name: String,
    type_name: String,
    not_null: bool,
    has_default: bool,
    is_generated: bool,
}

pub(super) struct Columns(Vec<Column>);

pub(super) async fn read(client: &Client, outbox: u32) -> Result<Columns, tokio_postgres::Error> {
    let rows = client.query_typed(READ, &[(&outbox, Type::OID)]).await?;
    let column = |row: &tokio_postgres::Row| Column {
        name: row.get(0),
        type_name: row.get(1),
        not_null: row.get(2),
        has_default: row.get(3),
        is_generated: row.get(4),
    };
    Ok(Columns(rows.iter().map(column).collect()))
}

impl Columns {
    fn get(&self, name: &str) -> Option<&Column> {
        self.0.iter().find(|column| column.name == name)
    }

    pub(super) fn payload(&self) -> Option<PayloadType> {
        PayloadType::from_name(&self.get("payload")?.type_name)
    }

    pub(super) fn has_topic(&self) -> bool {
        self.get(TOPIC).is_some()
    }

    /// The fault of the column `topic`.
    fn topic_fault(&self, table: &TableName, wanted: TopicColumn) -> Option<SchemaFault> {
        let outbox = table.quoted();
        let (problem, remedy) = match self.get(TOPIC) {
            None if wanted == TopicColumn::Optional => return None,
            None => (
                "[outbox] topic_allow is set, but the column is missing".to_owned(),
                format!("SET lock_timeout = '1s'; ALTER TABLE {outbox} ADD COLUMN {TOPIC} text;"),
            ),
            Some(topic) if topic.is_generated => (
                "it is generated, so a requeued dead letter could not keep its topic".to_owned(),
                format!("ALTER TABLE {outbox} ALTER COLUMN {TOPIC} DROP EXPRESSION;"),
            ),
            Some(topic) if TEXT.contains(&topic.type_name.as_str()) => return None,
            Some(topic) => (
                format!("the type is {}, not {}", topic.type_name, TEXT.join(" or ")),
                format!("ALTER TABLE {outbox} ALTER COLUMN {TOPIC} TYPE text USING {TOPIC}::text;"),
            ),
        };
        let place = format!("{table}, column {TOPIC}");
        Some(SchemaFault::new(SchemaFaultKind::Column, place, problem, remedy))
    }

    pub(super) fn faults(&self, table: &TableName, topic: TopicColumn) -> Vec<SchemaFault> {
        let mut faults = Vec::from_iter(self.topic_fault(table, topic));
        for wanted in WANTED {
            let place = format!("{table}, column {}", wanted.name);
            let alter = format!("ALTER TABLE {} ALTER COLUMN {}", table.quoted(), wanted.name);
            let mut fault = |problem: String, remedy: String| {
                faults.push(SchemaFault::new(SchemaFaultKind::Column, &place, problem, remedy));
            };
            let preferred = wanted.types.first().copied().unwrap_or_default();
            let Some(column) = self.get(wanted.name) else {
                fault(
                    "the column is missing".to_owned(),
                    format!("ALTER TABLE {} ADD COLUMN {} {preferred};", table.quoted(), wanted.name),
                );
                continue;
            };
            if !wanted.types.contains(&column.type_name.as_str()) {
                let problem = format!("the type is {}, not {}", column.type_name, wanted.types.join(" or "));
                fault(problem, format!("{alter} TYPE {preferred} USING {}::{preferred};", wanted.name));
            }
            if wanted.not_null && !column.not_null {
                fault("it allows NULL".to_owned(), format!("{alter} SET NOT NULL;"));
            }
            if wanted.name == "sent_at" && (column.has_default || column.not_null) {
                fault(
                    "it has a default or is NOT NULL, so new events would count as sent".to_owned(),
                    format!("{alter} DROP DEFAULT, ALTER COLUMN {} DROP NOT NULL;", wanted.name),
                );
            }
        }
        faults
    }
}
