//! The steps that make an existing table an outbox.

use super::Adoption;
use super::error::AdoptError;
use super::existing::{Existing, ExistingTable};
use super::judge::{default_of, is_added};
use crate::schema::check::columns::{WANTED, Wanted};
use crate::schema::check::id_index;
use crate::schema::check::index::{self, Pending};
use crate::schema::migrate::{Origin, print_adopted};
use crate::table::{Column, TableName};

/// What happens to the rows that the table has, if no column shows whether they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingRows {
    /// The relay publishes them.
    Publish,
    /// They count as sent when the column is added.
    Sent,
}

/// A step, which can be repeated.
#[derive(Debug)]
pub struct Step {
    /// What it does, for a person.
    pub purpose: String,
    pub(crate) sql: String,
    pub(crate) how: How,
}

/// How a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// In one transaction. Inserts wait for its locks.
    Transaction,
    /// A statement outside of a transaction.
    Alone,
    /// The same, for an index: no insert waits for its lock, so it may wait for other transactions.
    Index,
    /// The migrations, which have their own locks.
    Migrations,
}

/// While NULLs are ruled out. The server then sets NOT NULL without reading the table again.
pub(super) const NOT_NULL: &str = "outbox_relay_not_null";

/// Fills in the rows in the order of their IDs, 5,000 per transaction. The columns are qualified, because one may be named like
/// the variable.
const FILL: &str = "\
DO $$
#variable_conflict use_variable
DECLARE
    last bigint := (SELECT min(o.{id_column}) FROM {outbox} o);
BEGIN
    WHILE last IS NOT NULL LOOP
        UPDATE {outbox} o SET {event_id_column} = pg_catalog.gen_random_uuid()
        WHERE o.{id_column} >= last AND o.{event_id_column} IS NULL
          AND o.{id_column} <= (SELECT max(b.id) FROM (SELECT o.{id_column} AS id FROM {outbox} o WHERE o.{id_column} >= last
                                                  ORDER BY o.{id_column} LIMIT 5000) AS b);
        COMMIT;
        last := (SELECT o.{id_column} FROM {outbox} o WHERE o.{id_column} >= last
                 ORDER BY o.{id_column} OFFSET 5000 LIMIT 1);
    END LOOP;
END $$;";

pub(super) fn plan(
    table: &TableName,
    existing: &Existing,
    rows: Option<ExistingRows>,
) -> Result<Adoption, AdoptError> {
    let payload_is_bytes = |found: &ExistingTable| {
        found
            .columns
            .get(table.columns().name(Column::Payload))
            .is_some_and(|found| found.type_name == "bytea")
    };
    let is_bytes = existing.table.as_ref().is_some_and(payload_is_bytes);
    let origin = Origin::Adopted { payload_type: if is_bytes { "bytea" } else { "json" } };
    let mut steps = Vec::new();
    if let Some(found) = &existing.table {
        steps.extend(columns(table, found, rows)?);
        steps.extend(defaults(table, found));
        steps.extend(id_index(table, found));
        steps.extend(replica_identity(found));
        steps.extend(not_null(table, found));
        steps.extend(pending_index(table, found));
    }
    let is_migrated = existing.is_migrated();
    if !is_migrated {
        let sql = print_adopted(table, &existing.migrations, origin);
        steps.push(Step {
            purpose: "create the other tables and the functions".to_owned(),
            sql,
            how: How::Migrations,
        });
    }
    Ok(Adoption { steps, origin, is_migrated })
}

/// The columns that the table lacks.
fn lacking<'a>(table: &'a TableName, found: &'a ExistingTable) -> impl Iterator<Item = &'static Wanted> + 'a {
    let is_lacking = |wanted: &&Wanted| {
        is_added(wanted.column) && found.columns.get(table.columns().name(wanted.column)).is_none()
    };
    WANTED.iter().filter(is_lacking)
}

fn columns(
    table: &TableName,
    found: &ExistingTable,
    rows: Option<ExistingRows>,
) -> Result<Option<Step>, AdoptError> {
    let (outbox, mut sql, mut names, mut effect) = (table.quoted(), Vec::new(), Vec::new(), "");
    for Wanted { column, types, .. } in lacking(table, found) {
        let (name, sql_type) = (table.column(*column), types.first().copied().unwrap_or_default());
        let mut default = default_of(*column);
        if *column == Column::SentAt && found.has_rows {
            (default, effect) = match rows {
                None => return Err(AdoptError::ExistingRows { table: table.to_string() }),
                Some(ExistingRows::Publish) => ("", " (the relay will publish the existing rows)"),
                // The server stores the default of existing rows once, and does not rewrite the table.
                Some(ExistingRows::Sent) => (" DEFAULT now()", " (the existing rows count as sent)"),
            };
        }
        sql.push(format!("ALTER TABLE {outbox} ADD COLUMN IF NOT EXISTS {name} {sql_type}{default};"));
        if *column == Column::SentAt && !default.is_empty() {
            sql.push(format!("ALTER TABLE {outbox} ALTER COLUMN {name} DROP DEFAULT;"));
        }
        names.push(column.name());
    }
    let purpose = format!("add {}{effect}", names.join(", "));
    Ok((!sql.is_empty()).then(|| Step { purpose, sql: sql.join("\n"), how: How::Transaction }))
}

/// The defaults that `outbox_enqueue` and writers rely on. An `event_id` without NULLs always comes from the application.
fn defaults(table: &TableName, found: &ExistingTable) -> Option<Step> {
    let lacks = |column: &Column| match found.columns.get(table.columns().name(*column)) {
        Some(known) => !known.has_default && (*column == Column::CreatedAt || !known.not_null),
        None => *column == Column::EventId,
    };
    let defaults = [(Column::EventId, "gen_random_uuid()"), (Column::CreatedAt, "now()")];
    let defaults: Vec<_> = defaults.into_iter().filter(|(column, _)| lacks(column)).collect();
    let alter = |(column, default): &(Column, &str)| {
        format!(
            "ALTER TABLE {} ALTER COLUMN {} SET DEFAULT {default};",
            table.quoted(),
            table.column(*column)
        )
    };
    let names: Vec<&str> = defaults.iter().map(|(column, _)| column.name()).collect();
    let purpose = format!("set the default of {}", names.join(" and "));
    let sql: Vec<String> = defaults.iter().map(alter).collect();
    (!sql.is_empty()).then(|| Step { purpose, sql: sql.join("\n"), how: How::Transaction })
}

fn id_index(table: &TableName, found: &ExistingTable) -> Vec<Step> {
    let mut steps = Vec::new();
    if !found.id_index.is_valid {
        if found.id_index.is_unfinished {
            steps.push(drop_index(table, &id_index::name(table)));
        }
        let sql = id_index::create(table);
        steps.push(Step { purpose: "create an index on the IDs".to_owned(), sql, how: How::Index });
    }
    steps
}

/// Before the first UPDATE, which the server rejects without one.
fn replica_identity(found: &ExistingTable) -> Option<Step> {
    found.unidentified.as_ref().map(|unidentified| Step {
        purpose: "identify the rows for a publication that contains the table".to_owned(),
        sql: unidentified.remedy.clone(),
        how: How::Transaction,
    })
}

fn pending_index(table: &TableName, found: &ExistingTable) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Pending::Invalid(name) = &found.pending {
        steps.push(drop_index(table, name));
    }
    if !matches!(found.pending, Pending::Valid) {
        let sql = table.render(index::CREATE);
        steps.push(Step { purpose: "create the pending index".to_owned(), sql, how: How::Index });
    }
    steps
}

fn drop_index(table: &TableName, name: &str) -> Step {
    let purpose = format!("drop the index {name}, whose build was interrupted");
    let sql = format!("DROP INDEX CONCURRENTLY IF EXISTS {};", table.sibling(name));
    Step { purpose, sql, how: How::Index }
}

/// NOT NULL for all columns that need it, without a long lock: the constraint is checked while rows are inserted.
fn not_null(table: &TableName, found: &ExistingTable) -> Vec<Step> {
    let is_nullable = |wanted: &&Wanted| match found.columns.get(table.columns().name(wanted.column)) {
        Some(known) => wanted.not_null && !known.not_null,
        None => wanted.column == Column::EventId,
    };
    let columns: Vec<Column> = WANTED.iter().filter(is_nullable).map(|wanted| wanted.column).collect();
    if columns.is_empty() {
        return Vec::new();
    }
    let (outbox, names) = (table.quoted(), columns.iter().map(|column| table.column(*column)));
    let names: Vec<String> = names.collect();
    let mut steps = Vec::new();
    if columns.contains(&Column::EventId) {
        let purpose = "give existing rows an event_id".to_owned();
        steps.push(Step { purpose, sql: table.render(FILL), how: How::Alone });
    }
    let drop = format!("ALTER TABLE {outbox} DROP CONSTRAINT IF EXISTS {NOT_NULL};");
    let condition: Vec<String> = names.iter().map(|name| format!("{name} IS NOT NULL")).collect();
    let add = format!(
        "{drop}\nALTER TABLE {outbox} ADD CONSTRAINT {NOT_NULL} CHECK ({}) NOT VALID;",
        condition.join(" AND ")
    );
    let set: Vec<String> =
        names.iter().map(|name| format!("ALTER TABLE {outbox} ALTER COLUMN {name} SET NOT NULL;")).collect();
    let validate = format!("ALTER TABLE {outbox} VALIDATE CONSTRAINT {NOT_NULL};");
    let of = names.join(", ");
    steps.push(Step { purpose: format!("reject NULL in {of}"), sql: add, how: How::Transaction });
    steps.push(Step { purpose: format!("check the rows for NULL in {of}"), sql: validate, how: How::Alone });
    let sql = format!("{}\n{drop}", set.join("\n"));
    steps.push(Step { purpose: format!("set NOT NULL for {of}"), sql, how: How::Transaction });
    steps
}
