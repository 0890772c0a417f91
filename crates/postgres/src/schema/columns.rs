//! Checks the columns of the outbox, and the sequence of the ids, which determines the order within a key.

use crate::columns::{Column, PayloadType};
use crate::schema::errors::{SchemaFault, SchemaFaultKind};
use crate::sql::{Script, bare, sql};
use crate::table::{TableName, quote_literal};
use relay::topic::TopicRules;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

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
    Optional,
    /// `[outbox] topic_allow` is set.
    Required,
}

impl From<&TopicRules> for TopicColumn {
    fn from(topics: &TopicRules) -> TopicColumn {
        if topics.allow.is_some() { TopicColumn::Required } else { TopicColumn::Optional }
    }
}

const COLUMNS: &str = "
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
    Ok(rows.first().and_then(|row| PayloadType::named(row.get(0))))
}

/// A column as it is.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) type_name: String,
    pub(crate) not_null: bool,
    pub(crate) has_default: bool,
    /// By an expression.
    pub(crate) is_generated: bool,
    pub(crate) is_identity: bool,
}

/// The columns of a table.
pub(crate) struct FoundColumns(pub(crate) Vec<Found>);

pub(crate) async fn read(client: &Client, outbox: u32) -> Result<FoundColumns, tokio_postgres::Error> {
    let rows = client.query_typed(COLUMNS, &[(&outbox, Type::OID)]).await?;
    let column = |row: &Row| Found {
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
        PayloadType::named(&self.get(table.columns().name(Column::Payload))?.type_name)
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

/// For IDs that the application assigns: it works with every ORM, because no statement of the application names the column.
const SEPARATE: &str = "add a column for the order, which rewrites the table: ALTER TABLE {outbox} ADD COLUMN outbox_seq bigint \
     GENERATED ALWAYS AS IDENTITY (CACHE 1); and set [outbox.columns] id = \"outbox_seq\"";

pub(crate) async fn sequence_faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let id = table.columns().name(Column::Id);
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&outbox, Type::OID), (&id, Type::TEXT)];
    let rows = client.query_typed(bare(sql!("check/sequence")), &params).await?;
    let mut faults = Vec::new();
    if rows.is_empty() {
        let foreign = client.query_typed(bare(sql!("check/foreign_sequence")), &params).await?;
        let column = format!("{}.{}", table.quoted(), table.column(Column::Id));
        let found = foreign.first().map(|row| (row.get::<_, String>(0), row.get::<_, Option<String>>(1)));
        let (problem, remedy) = match found {
            Some((sequence, Some(owner))) => (
                format!("the IDs come from {sequence}, a sequence of the table {owner}"),
                format!(
                    "create a sequence that begins above the highest ID, and make it the default: CREATE SEQUENCE ... START WITH ... \
                     OWNED BY {column}; ALTER TABLE {outbox} ALTER COLUMN {id} SET DEFAULT nextval(...);",
                    outbox = table.quoted(),
                    id = table.column(Column::Id)
                ),
            ),
            Some((sequence, None)) => (
                format!("the sequence {sequence} does not belong to the column"),
                format!("ALTER SEQUENCE {sequence} OWNED BY {column};"),
            ),
            None => (
                "the IDs do not come from a sequence of the table: the application assigns them, so they need not follow the \
                 order of its commits"
                    .to_owned(),
                table.render(SEPARATE),
            ),
        };
        faults.push(SchemaFault::new(SchemaFaultKind::Sequence, place(table, Column::Id), problem, remedy));
    }
    for row in &rows {
        faults.extend(definition_faults(row, table));
        if row.get(5) {
            faults.extend(behind(client, table, row).await?);
        }
    }
    Ok(faults)
}

/// After a switchover by logical replication or a restore of the rows alone, the next IDs would be below those of waiting events.
async fn behind(
    client: &Client,
    table: &TableName,
    row: &Row,
) -> Result<Option<SchemaFault>, tokio_postgres::Error> {
    let sequence: &str = row.get(0);
    let behind = Script::new(sql!("check/sequence_behind"), table).set("sequence", sequence);
    let ahead = client.query_typed(&behind.render(), &[]).await?;
    Ok(ahead.first().map(|ahead| {
        let (next, highest): (i64, i64) = (ahead.get(0), ahead.get(1));
        let problem = format!(
            "the sequence is behind: the next ID is {next}, but the table has ID {highest}, so new events would be published \
             before those that wait"
        );
        let (outbox, id) = (table.quoted(), table.column(Column::Id));
        let literal = quote_literal(sequence);
        let advance = format!("SELECT setval({literal}, (SELECT max({id}) FROM {outbox}));");
        let remedy = match row.get(4) {
            true => advance,
            false => format!("{advance} If the application assigns IDs itself, {}", table.render(SEPARATE)),
        };
        SchemaFault::new(SchemaFaultKind::Sequence, place(table, Column::Id), problem, remedy)
    }))
}

fn definition_faults(row: &Row, table: &TableName) -> Vec<SchemaFault> {
    let (sequence, cache, increment): (&str, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let (cycles, always): (bool, bool) = (row.get(3), row.get(4));
    let place = place(table, Column::Id);
    let mut faults = Vec::new();
    let mut fault = |problem: String, remedy: String| {
        faults.push(SchemaFault::new(SchemaFaultKind::Sequence, &place, problem, remedy));
    };
    if cache != 1 {
        fault(
            format!("the sequence has CACHE {cache}: sessions get IDs out of order, which reorders events"),
            format!(
                "ALTER SEQUENCE {sequence} CACHE 1; then reconnect the writers, because they keep their cached IDs"
            ),
        );
    }
    if increment != 1 && always {
        fault(
            format!("the sequence has INCREMENT {increment}"),
            match increment > 0 {
                true => format!("ALTER SEQUENCE {sequence} INCREMENT 1;"),
                // It also has the limits and the value of a descending sequence.
                false => format!(
                    "ALTER SEQUENCE {sequence} INCREMENT 1 NO MINVALUE NO MAXVALUE RESTART WITH 1; with a number above the highest ID"
                ),
            },
        );
    } else if increment != 1 {
        fault(
            format!(
                "the sequence has INCREMENT {increment}: an ORM such as Hibernate assigns the IDs in blocks, so they do not \
                 follow the order of commits"
            ),
            table.render(SEPARATE),
        );
    }
    if cycles {
        fault(
            "the sequence has CYCLE: IDs would restart and reorder events".to_owned(),
            format!("ALTER SEQUENCE {sequence} NO CYCLE;"),
        );
    }
    faults
}
