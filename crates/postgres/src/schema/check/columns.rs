//! Checks the columns of the outbox, and reads the type of the payload.

use std::fmt;
use std::str::FromStr;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::fault::{SchemaFault, SchemaFaultKind};
use crate::table::{Column, TableName};
use relay::topic::TopicRules;

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

pub(crate) struct Wanted {
    pub(crate) column: Column,
    /// The supported types, starting with the one of the migration.
    pub(crate) types: &'static [&'static str],
    pub(crate) not_null: bool,
}

const fn wanted(column: Column, types: &'static [&'static str], not_null: bool) -> Wanted {
    Wanted { column, types, not_null }
}

pub(crate) const TEXT: &[&str] = &["text", "character varying"];

pub(crate) const WANTED: [Wanted; 9] = [
    wanted(Column::Id, &["bigint"], true),
    wanted(Column::EventId, &["uuid"], true),
    wanted(Column::AggregateType, TEXT, true),
    wanted(Column::AggregateId, TEXT, true),
    wanted(Column::EventType, TEXT, true),
    wanted(Column::Payload, &["json", "jsonb", "bytea", "text"], false),
    wanted(Column::Headers, &["jsonb"], false),
    wanted(Column::CreatedAt, &["timestamp with time zone"], true),
    wanted(Column::SentAt, &["timestamp with time zone"], false),
];

/// Whether the outbox must have the column `topic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicColumn {
    /// It may be missing.
    Optional,
    /// `[outbox] topic_allow` is set.
    Required,
}

impl From<&TopicRules> for TopicColumn {
    fn from(topics: &TopicRules) -> TopicColumn {
        if topics.allow.is_some() { TopicColumn::Required } else { TopicColumn::Optional }
    }
}

const READ: &str = "
SELECT attname::text, format_type(atttypid, NULL), attnotnull, atthasdef, attgenerated <> '', attidentity <> ''
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped";

const PAYLOAD_TYPE: &str = "
SELECT format_type(atttypid, NULL)
FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attname = $2::text AND NOT attisdropped";

/// The current type of the payload column; `None` if the relay does not support it.
pub(crate) async fn payload_type(
    client: &Client,
    table: &TableName,
) -> Result<Option<PayloadType>, tokio_postgres::Error> {
    let payload = table.columns().name(Column::Payload);
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&table.quoted(), Type::TEXT), (&payload, Type::TEXT)];
    let rows = client.query_typed(PAYLOAD_TYPE, &params).await?;
    Ok(rows.first().and_then(|row| PayloadType::from_name(row.get(0))))
}

/// A column as it is.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) type_name: String,
    pub(crate) not_null: bool,
    pub(crate) has_default: bool,
    /// By an expression.
    pub(crate) is_generated: bool,
    /// Whether it is an identity column.
    pub(crate) is_identity: bool,
}

/// The columns of a table.
pub(crate) struct FoundColumns(pub(crate) Vec<Found>);

pub(crate) async fn read(client: &Client, outbox: u32) -> Result<FoundColumns, tokio_postgres::Error> {
    let rows = client.query_typed(READ, &[(&outbox, Type::OID)]).await?;
    let column = |row: &tokio_postgres::Row| Found {
        name: row.get(0),
        type_name: row.get(1),
        not_null: row.get(2),
        has_default: row.get(3),
        is_generated: row.get(4),
        is_identity: row.get(5),
    };
    Ok(FoundColumns(rows.iter().map(column).collect()))
}

/// The place of a fault. Names the setting of a renamed column.
pub(crate) fn place(table: &TableName, column: Column) -> String {
    let name = table.columns().name(column);
    let setting = if name == column.name() { String::new() } else { format!(" ([outbox.columns] {column})") };
    format!("{table}, column {name}{setting}")
}

impl FoundColumns {
    pub(crate) fn get(&self, name: &str) -> Option<&Found> {
        self.0.iter().find(|column| column.name == name)
    }

    pub(super) fn payload(&self, table: &TableName) -> Option<PayloadType> {
        PayloadType::from_name(&self.get(table.columns().name(Column::Payload))?.type_name)
    }

    pub(super) fn has_topic(&self, table: &TableName) -> bool {
        table.columns().topic().is_some_and(|name| self.get(name).is_some())
    }

    /// The fault of the column `topic`.
    fn topic_fault(&self, table: &TableName, wanted: TopicColumn) -> Option<SchemaFault> {
        let (outbox, topic) = (table.quoted(), table.column(Column::Topic));
        let add = || format!("SET lock_timeout = '1s'; ALTER TABLE {outbox} ADD COLUMN {topic} text;");
        let (problem, remedy) = match table.columns().topic().map(|name| self.get(name)) {
            None | Some(None) if wanted == TopicColumn::Required => {
                let remedy = match table.columns().topic() {
                    Some(_) => add(),
                    None => "set [outbox.columns] topic, because another column has that name".to_owned(),
                };
                ("[outbox] topic_allow is set, but the column is missing".to_owned(), remedy)
            }
            Some(None) if table.columns().is_renamed(Column::Topic) => {
                ("the column is missing".to_owned(), add())
            }
            None | Some(None) => return None,
            Some(Some(found)) if found.is_generated => (
                "it is generated, so a requeued dead letter could not keep its topic".to_owned(),
                format!("ALTER TABLE {outbox} ALTER COLUMN {topic} DROP EXPRESSION;"),
            ),
            Some(Some(found)) if TEXT.contains(&found.type_name.as_str()) => return None,
            Some(Some(found)) => (
                format!("the type is {}, not {}", found.type_name, TEXT.join(" or ")),
                format!("ALTER TABLE {outbox} ALTER COLUMN {topic} TYPE text USING {topic}::text;"),
            ),
        };
        Some(SchemaFault::new(SchemaFaultKind::Column, place(table, Column::Topic), problem, remedy))
    }

    pub(super) fn faults(&self, table: &TableName, topic: TopicColumn) -> Vec<SchemaFault> {
        let mut faults = Vec::from_iter(self.topic_fault(table, topic));
        for wanted in WANTED {
            let (place, name) = (place(table, wanted.column), table.column(wanted.column));
            let alter = format!("ALTER TABLE {} ALTER COLUMN {name}", table.quoted());
            let mut fault = |problem: String, remedy: String| {
                faults.push(SchemaFault::new(SchemaFaultKind::Column, &place, problem, remedy));
            };
            let preferred = wanted.types.first().copied().unwrap_or_default();
            let Some(column) = self.get(table.columns().name(wanted.column)) else {
                fault(
                    "the column is missing".to_owned(),
                    format!("ALTER TABLE {} ADD COLUMN {name} {preferred};", table.quoted()),
                );
                continue;
            };
            if !wanted.types.contains(&column.type_name.as_str()) {
                let problem = format!("the type is {}, not {}", column.type_name, wanted.types.join(" or "));
                fault(problem, format!("{alter} TYPE {preferred} USING {name}::{preferred};"));
            }
            if wanted.not_null && !column.not_null {
                fault("it allows NULL".to_owned(), format!("{alter} SET NOT NULL;"));
            }
            if wanted.column == Column::SentAt && (column.has_default || column.not_null) {
                fault(
                    "it has a default or is NOT NULL, so new events would count as sent".to_owned(),
                    format!("{alter} DROP DEFAULT, ALTER COLUMN {name} DROP NOT NULL;"),
                );
            }
        }
        faults
    }
}
