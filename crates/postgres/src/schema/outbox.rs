//! Checks the outbox itself: its columns, the sequence of the ids, which determines the order within a key, and its indexes: the
//! pending index, without which each claim would sort the whole outbox, and one that finds rows by ID, which is the primary key
//! of a table that `migrate` creates. And other properties with which the relay would read rows slowly, find the wrong rows, or
//! publish rows that it can never record as sent.

use crate::columns::{Column, Columns, PayloadType};
use crate::schema::errors::{COLUMN, PENDING_INDEX, RELATION, SEQUENCE, SEQUENCE_LIMIT};
use crate::schema::migrate::DDL_LOCK_TIMEOUT;
use crate::sql::{Script, bare, sql};
use crate::table::{TableName, quote_identifier, quote_literal};
use settings::doctor::Finding;
use tokio_postgres::{Client, Error, Row};

pub(super) struct Wanted {
    pub(super) column: Column,
    /// The supported types, starting with the one of the migration.
    pub(super) types: &'static [&'static str],
    pub(super) not_null: bool,
}

const fn wanted(column: Column, types: &'static [&'static str], not_null: bool) -> Wanted {
    Wanted { column, types, not_null }
}

pub(super) const TEXT: &[&str] = &["text", "character varying"];

pub(super) const WANTED: [Wanted; 9] = [
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

/// From PostgreSQL 18, `attnotnull` is also true for a constraint that is NOT VALID, so existing rows may have NULL.
const COLUMNS: &str = "
SELECT attname::text, format_type(atttypid, NULL), attnotnull,
       attnotnull AND NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = attrelid AND contype = 'n'
                                  AND attnum = ANY (conkey) AND NOT convalidated),
       atthasdef, attgenerated <> '', attidentity <> ''
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped";

const PAYLOAD_TYPE: &str = "
SELECT format_type(atttypid, NULL)
FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attname = $2::text AND NOT attisdropped";

/// The current type of the payload column; `None` if the relay does not support it.
pub(crate) async fn payload_type(client: &Client, table: &TableName) -> Result<Option<PayloadType>, Error> {
    let params = params![table.quoted() => TEXT, table.columns().name(Column::Payload) => TEXT];
    let rows = client.query_typed(PAYLOAD_TYPE, &params).await?;
    Ok(rows.first().and_then(|row| PayloadType::named(row.get(0))))
}

pub(super) struct Found {
    pub(super) name: String,
    pub(super) type_name: String,
    /// For new rows.
    pub(super) not_null: bool,
    /// For all rows.
    pub(super) never_null: bool,
    pub(super) has_default: bool,
    /// By an expression.
    pub(super) is_generated: bool,
    pub(super) is_identity: bool,
}

from_row!(Found: name, type_name, not_null, never_null, has_default, is_generated, is_identity);

pub(super) struct FoundColumns {
    names: Columns,
    pub(super) all: Vec<Found>,
}

/// The place of a fault. Names the setting of a renamed column.
pub(super) fn place(table: &TableName, column: Column) -> String {
    let name = table.columns().name(column);
    let setting = if name == column.name() { String::new() } else { format!(" ([outbox.columns] {column})") };
    format!("{table}, column {name}{setting}")
}

/// The beginning of a statement that changes a column.
pub(super) fn alter(table: &TableName, column: Column) -> String {
    format!("ALTER TABLE {} ALTER COLUMN {}", table.quoted(), table.column(column))
}

impl FoundColumns {
    pub(super) fn get(&self, column: Column) -> Option<&Found> {
        let name = if column == Column::Topic { self.names.topic()? } else { self.names.name(column) };
        self.all.iter().find(|found| found.name == name)
    }

    pub(super) fn payload(&self) -> Option<PayloadType> {
        PayloadType::named(&self.get(Column::Payload)?.type_name)
    }

    fn topic_fault(&self, table: &TableName, requires_topic: bool) -> Option<Finding> {
        let (outbox, topic, alter) =
            (table.quoted(), table.column(Column::Topic), alter(table, Column::Topic));
        let add = || {
            format!("SET lock_timeout = '{DDL_LOCK_TIMEOUT}'; ALTER TABLE {outbox} ADD COLUMN {topic} text;")
        };
        let (problem, remedy) = match self.get(Column::Topic) {
            None if requires_topic => {
                let remedy = match self.names.topic() {
                    Some(_) => add(),
                    None => "set [outbox.columns] topic, because another column has that name".to_owned(),
                };
                ("[outbox] topic_allow is set, but the column is missing".to_owned(), remedy)
            }
            None if self.names.is_renamed(Column::Topic) => ("the column is missing".to_owned(), add()),
            None => return None,
            Some(found) if found.is_generated => (
                "it is generated, so a requeued dead letter could not keep its topic".to_owned(),
                format!("{alter} DROP EXPRESSION;"),
            ),
            Some(found) if TEXT.contains(&found.type_name.as_str()) => return None,
            Some(found) => (
                format!("the type is {}, not {}", found.type_name, TEXT.join(" or ")),
                format!("{alter} TYPE text USING {topic}::text;"),
            ),
        };
        Some(COLUMN.found(place(table, Column::Topic), problem, remedy))
    }

    pub(super) fn faults(&self, table: &TableName, requires_topic: bool) -> Vec<Finding> {
        let mut faults = Vec::from_iter(self.topic_fault(table, requires_topic));
        for wanted in WANTED {
            let (place, name) = (place(table, wanted.column), table.column(wanted.column));
            let alter = alter(table, wanted.column);
            let mut fault = |problem: String, remedy: String| {
                faults.push(COLUMN.found(&place, problem, remedy));
            };
            let preferred = wanted.types.first().copied().unwrap_or_default();
            let Some(column) = self.get(wanted.column) else {
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
            if wanted.not_null && !column.never_null {
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
const SEPARATE: &str = "let everything that waits be sent, because the existing rows are numbered as they are stored. Then add a \
     column for the order, which rewrites the table: ALTER TABLE {outbox} ADD COLUMN outbox_seq bigint \
     GENERATED ALWAYS AS IDENTITY (CACHE 1); and set [outbox.columns] id = \"outbox_seq\"";

/// After a switchover by logical replication or a restore of the rows alone, the next IDs would be below those of waiting events.
async fn behind(client: &Client, table: &TableName, row: &Row) -> Result<Option<Finding>, Error> {
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
        let advance = match highest > i64::MAX / 2 {
            // In their order.
            true => format!(
                "stop all relays, then run: UPDATE {outbox} SET {id} = DEFAULT WHERE {id} = {};",
                ahead.get::<_, i64>(2)
            ),
            false => format!(
                "SELECT setval({literal}, (SELECT max({id}) FROM {outbox} WHERE {id} < 4611686018427387904));"
            ),
        };
        let remedy = match row.get(4) {
            true => advance,
            false => format!("{advance} If the application assigns IDs itself, {}", table.render(SEPARATE)),
        };
        SEQUENCE.found(place(table, Column::Id), problem, remedy)
    }))
}

fn definition_faults(row: &Row, table: &TableName) -> Vec<Finding> {
    let (sequence, cache, increment): (&str, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let (cycles, always): (bool, bool) = (row.get(3), row.get(4));
    let place = place(table, Column::Id);
    let mut faults = Vec::new();
    let mut fault = |problem: String, remedy: String| {
        faults.push(SEQUENCE.found(&place, problem, remedy));
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

/// The finding for a row of `check/sequence_limit`.
pub(crate) fn limited(table: &TableName, row: &Row) -> Finding {
    let (sequence, limit): (&str, i64) = (row.get(0), row.get(1));
    let problem = format!("the sequence ends at {limit}, and then every INSERT fails");
    let remedy = format!("ALTER SEQUENCE {sequence} AS bigint NO MAXVALUE;");
    SEQUENCE_LIMIT.found(place(table, Column::Id), problem, remedy)
}

/// CONCURRENTLY, because a plain CREATE INDEX would block inserts.
pub(super) const CREATE_PENDING: &str = "CREATE INDEX CONCURRENTLY {pending_index} ON {outbox} ((hashtext({aggregate_id_column}) & 63), {id_column}) WHERE {sent_at_column} IS NULL;";

pub(super) struct Index {
    pub(super) name: String,
    pub(super) definition: String,
    usable: bool,
    fits: bool,
}

from_row!(Index: name, definition, usable, fits);

/// The state of the pending index.
pub(super) enum Pending {
    Valid,
    /// Building the index of this name was interrupted.
    Invalid(String),
    /// An index has its name, but another definition.
    Different(Index),
    Missing,
}

pub(super) struct IdIndex {
    pub(super) is_valid: bool,
    /// Building it was interrupted.
    pub(super) is_unfinished: bool,
}

from_row!(IdIndex: is_valid, is_unfinished);

/// The index's name, unquoted.
pub(super) fn id_index_name(table: &TableName) -> String {
    format!("{}_id_key", table.table())
}

/// The statement that creates it. CONCURRENTLY, because a plain CREATE INDEX would block inserts.
pub(super) fn create_id_index(table: &TableName) -> String {
    format!(
        "CREATE UNIQUE INDEX CONCURRENTLY {} ON {} ({});",
        quote_identifier(&id_index_name(table)),
        table.quoted(),
        table.column(Column::Id)
    )
}

/// The columns that statements compare or hash.
const COMPARED: [Column; 4] = [Column::AggregateType, Column::AggregateId, Column::EventType, Column::Topic];

fn hazard_fault(row: &Row, table: &TableName) -> Finding {
    let (hazard, name): (&str, &str) = (row.get(0), row.get(1));
    let outbox = table.quoted();
    match hazard {
        "child" => RELATION.found(
            table,
            format!(
                "the table {name} inherits from it: the relay would find the rows of {name} without an index, and never delete \
                 them"
            ),
            format!("move the rows of {name} to {outbox}, then run: ALTER TABLE {name} NO INHERIT {outbox};"),
        ),
        "rule" => RELATION.found(
            table,
            format!(
                "the rule {name} replaces inserts, updates or deletes, so new events would be lost, or sent ones not recorded"
            ),
            format!("DROP RULE {name} ON {outbox};"),
        ),
        "publication" => RELATION.found(
            table,
            format!(
                "the publication {name} has a row filter or a column list that does not fit the replica identity of the \
                 table, so the server rejects updates or deletes of the relay"
            ),
            format!(
                "ALTER PUBLICATION {name} DROP TABLE {outbox}; ALTER PUBLICATION {name} ADD TABLE {outbox}; or limit its option \
                 publish to 'insert'"
            ),
        ),
        _ => {
            let column = COMPARED.into_iter().find(|column| table.columns().name(*column) == name);
            let problem =
                "its collation is nondeterministic, so pauses and blocks would not match its values";
            let remedy = format!(
                "ALTER TABLE {outbox} ALTER COLUMN {sql} TYPE text COLLATE \"default\";",
                sql = quote_identifier(name)
            );
            let place = column.map_or_else(|| table.to_string(), |column| place(table, column));
            COLUMN.found(place, problem, remedy)
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Outbox<'a> {
    pub(super) client: &'a Client,
    pub(super) table: &'a TableName,
    pub(super) oid: u32,
}

impl Outbox<'_> {
    pub(super) async fn columns(&self) -> Result<FoundColumns, Error> {
        let rows = self.client.query_typed(COLUMNS, &params![self.oid => OID]).await?;
        let all = rows.iter().map(Found::from).collect();
        Ok(FoundColumns { names: self.table.columns().clone(), all })
    }

    /// The faults apart from those of the columns.
    pub(super) async fn faults(&self, columns: &FoundColumns) -> Result<Vec<Finding>, Error> {
        let mut faults = self.hazard_faults().await?;
        faults.extend(self.unidentified().await?);
        faults.extend(self.pending_fault().await?);
        let mut has_index = false;
        if columns.get(Column::Id).is_some() {
            let fault = self.id_index_fault().await?;
            has_index = fault.is_none();
            faults.extend(fault);
        }
        faults.extend(self.sequence_faults(has_index).await?);
        Ok(faults)
    }

    /// Compares the sequence with the highest ID only if `finds_highest`, because without an index that reads the whole table.
    pub(super) async fn sequence_faults(&self, finds_highest: bool) -> Result<Vec<Finding>, Error> {
        let Outbox { client, table, oid } = *self;
        let params = params![oid => OID, table.columns().name(Column::Id) => TEXT];
        let rows = client.query_typed(bare(sql!("check/sequence")), &params).await?;
        if rows.is_empty() {
            let foreign = client.query_typed(bare(sql!("check/foreign_sequence")), &params).await?;
            let column = format!("{}.{}", table.quoted(), table.column(Column::Id));
            let found = foreign.first().map(|row| (row.get::<_, String>(0), row.get::<_, Option<String>>(1)));
            let (problem, remedy) = match found {
                Some((sequence, Some(owner))) => (
                    format!("the IDs come from {sequence}, a sequence of the table {owner}"),
                    format!(
                        "create a sequence that begins above the highest ID, and make it the default: CREATE SEQUENCE ... START WITH ... \
                         OWNED BY {column}; {} SET DEFAULT nextval(...);",
                        alter(table, Column::Id)
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
            return Ok(vec![SEQUENCE.found(place(table, Column::Id), problem, remedy)]);
        }
        let mut faults = Vec::new();
        for row in &rows {
            faults.extend(definition_faults(row, table));
            if finds_highest && row.get(5) {
                faults.extend(behind(client, table, row).await?);
            }
        }
        Ok(faults)
    }

    pub(super) async fn read_pending(&self) -> Result<Pending, Error> {
        let Outbox { client, table, oid } = *self;
        let [id, aggregate_id, sent_at] =
            [Column::Id, Column::AggregateId, Column::SentAt].map(|column| table.columns().name(column));
        let params = params![oid => OID, id => TEXT, aggregate_id => TEXT, sent_at => TEXT];
        let rows = client.query_typed(bare(sql!("check/indexes")), &params).await?;
        let mut indexes: Vec<Index> = rows.iter().map(Index::from).collect();
        if indexes.iter().any(|index| index.fits && index.usable) {
            return Ok(Pending::Valid);
        }
        let own = table.pending_index_name();
        // An invalid index of the right definition first.
        indexes.sort_by_key(|index| !index.fits);
        Ok(match indexes.into_iter().find(|index| index.fits || index.name == own) {
            Some(Index { fits: true, name, .. }) => Pending::Invalid(name),
            Some(index) => Pending::Different(index),
            None => Pending::Missing,
        })
    }

    async fn pending_fault(&self) -> Result<Option<Finding>, Error> {
        let Outbox { table, .. } = *self;
        let (create, quoted) = (table.render(CREATE_PENDING), |name: &str| table.sibling(name));
        let (problem, remedy) = match self.read_pending().await? {
            Pending::Valid => return Ok(None),
            Pending::Invalid(name) => (
                format!("the index {name} is not valid: it is being built, or building it was interrupted"),
                format!(
                    "REINDEX INDEX CONCURRENTLY {}; unless pg_stat_progress_create_index lists it",
                    quoted(&name)
                ),
            ),
            Pending::Different(Index { name, definition, .. }) => (
                format!("the index {name} has a different definition: {definition}"),
                format!("DROP INDEX CONCURRENTLY {}; {create}", quoted(&name)),
            ),
            Pending::Missing => ("the pending index is missing".to_owned(), create),
        };
        Ok(Some(PENDING_INDEX.found(table, problem, remedy)))
    }

    pub(super) async fn read_id_index(&self) -> Result<IdIndex, Error> {
        let Outbox { client, table, oid } = *self;
        let params =
            params![oid => OID, table.columns().name(Column::Id) => TEXT, id_index_name(table) => TEXT];
        Ok(IdIndex::from(&client.query_typed_one(bare(sql!("check/id_index")), &params).await?))
    }

    async fn id_index_fault(&self) -> Result<Option<Finding>, Error> {
        let Outbox { table, .. } = *self;
        let index = self.read_id_index().await?;
        if index.is_valid {
            return Ok(None);
        }
        let create = create_id_index(table);
        let remedy = match index.is_unfinished {
            true => format!("DROP INDEX CONCURRENTLY {}; {create}", table.sibling(&id_index_name(table))),
            false => create,
        };
        let problem =
            "no unique index finds rows by it, so every search for new events would read the whole table";
        Ok(Some(COLUMN.found(place(table, Column::Id), problem, remedy)))
    }

    pub(super) async fn hazard_faults(&self) -> Result<Vec<Finding>, Error> {
        let Outbox { client, table, oid } = *self;
        let compared: Vec<&str> = COMPARED.map(|column| table.columns().name(column)).to_vec();
        let params = params![oid => OID, compared => TEXT_ARRAY];
        let rows = client.query_typed(bare(sql!("check/hazards")), &params).await?;
        Ok(rows.iter().map(|row| hazard_fault(row, table)).collect())
    }

    /// A publication contains the changes of the table, although nothing identifies its rows. The remedy gives it a replica
    /// identity, whose index may not exist yet.
    pub(super) async fn unidentified(&self) -> Result<Option<Finding>, Error> {
        let Outbox { client, table, oid } = *self;
        let id = table.columns().name(Column::Id);
        let params = params![oid => OID, table.schema() => TEXT, table.table() => TEXT, id => TEXT];
        let rows = client.query_typed(bare(sql!("check/unidentified")), &params).await?;
        Ok(rows.first().map(|row| {
            let (publication, index): (&str, Option<String>) = (row.get(0), row.get(1));
            let index = index.unwrap_or_else(|| quote_identifier(&id_index_name(table)));
            let problem = format!(
                "it has no replica identity, but the publication {publication} contains it, so the server rejects every update and \
                 delete of the relay"
            );
            let remedy = format!("ALTER TABLE {} REPLICA IDENTITY USING INDEX {index};", table.quoted());
            RELATION.found(table, problem, remedy)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::series::MIGRATIONS;

    #[test]
    fn the_remedy_creates_the_index_of_the_migration() {
        let table = TableName::new("s", "t").unwrap();
        let plain = table.render(&CREATE_PENDING.replace(" CONCURRENTLY", ""));
        assert!(
            MIGRATIONS.iter().any(|migration| table.render(migration.template).contains(&plain)),
            "{plain}"
        );
    }
}
