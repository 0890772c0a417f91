//! Adopts an existing table: finds out what it lacks to be an outbox, as steps that can be printed or run.
//!
//! Each step can be repeated, and the migrations are the last one. After an interruption, the next run therefore finds the
//! rest. No step holds a lock that inserts wait for longer than it takes to change the system catalogs.

use crate::columns::Column;
use crate::schema::columns::{WANTED, Wanted};
use crate::schema::errors::{AdoptError, DDL_ATTEMPTS, MigrateError};
use crate::schema::existing::{Existing, ExistingTable, default_of, is_added, read_existing, refusals};
use crate::schema::indexes::Pending;
use crate::schema::migrate::DDL_PAUSE;
use crate::schema::script::{Origin, Texts, print_adopted};
use crate::schema::series::Series;
use crate::schema::{indexes, migrate};
use crate::sql::{body, sql};
use crate::table::TableName;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// What a table lacks.
pub struct Adoption {
    /// In order; empty if nothing is missing.
    pub steps: Vec<Step>,
    /// For the migrations.
    pub(crate) origin: Origin,
    /// Whether all migrations are applied.
    pub(crate) is_migrated: bool,
}

/// Reads the table, and finds out what it lacks. Changes nothing. `rows` is the choice for the rows that the table has.
pub async fn plan(
    client: &mut Client,
    table: &TableName,
    rows: Option<ExistingRows>,
) -> Result<Adoption, AdoptError> {
    let existing = read_existing(client, table).await?;
    let refusals = refusals(table, &existing);
    if !refusals.is_empty() {
        return Err(AdoptError::Refused { table: table.to_string(), faults: refusals });
    }
    steps(table, &existing, rows)
}

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

/// Fills in the rows in the order of their IDs.
const FILL: &str = sql!("adopt/event_ids");

fn steps(table: &TableName, existing: &Existing, rows: Option<ExistingRows>) -> Result<Adoption, AdoptError> {
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
            steps.push(drop_index(table, &indexes::id_index_name(table)));
        }
        let sql = indexes::create_id_index(table);
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
        let sql = table.render(indexes::CREATE_PENDING);
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
        steps.push(Step { purpose, sql: table.render(body(FILL).trim_end()), how: How::Alone });
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

/// For the session, because indexes cannot be built in a transaction. The command refuses a pooler in transaction mode. While a
/// statement waits for a lock on the table, inserts wait too.
const APPLY_SETTINGS: &str = "SET search_path = pg_catalog, pg_temp; SET statement_timeout = 0; SET lock_timeout = '1s'; \
                        SET default_transaction_read_only = off";

/// Tries the migrations and rolls them back, so that a missing privilege or a name that is in use stops the adoption before it
/// has changed the table. Sets the session up for [`apply`].
pub async fn prepare(client: &mut Client, table: &TableName, adoption: &Adoption) -> Result<(), AdoptError> {
    client.batch_execute(APPLY_SETTINGS).await?;
    if !adoption.is_migrated {
        migrate::dry_run_adopted(client, table, adoption.origin).await?;
    }
    Ok(())
}

/// Runs one step. A step that cannot get its lock is tried again.
pub async fn apply(
    client: &mut Client,
    table: &TableName,
    adoption: &Adoption,
    step: &Step,
) -> Result<(), AdoptError> {
    if step.how == How::Migrations {
        return Ok(migrate::apply_as(
            client,
            table,
            Texts { series: Series::Outbox, origin: adoption.origin },
        )
        .await
        .map(drop)?);
    }
    let mut attempt = 1;
    loop {
        let Err(error) = run(client, step).await else { return Ok(()) };
        let is_locked = error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        match (is_locked, attempt < DDL_ATTEMPTS) {
            (true, true) => attempt += 1,
            (true, false) => return Err(MigrateError::InUse { table: table.to_string() }.into()),
            (false, _) => return Err(failed(client, table, step, error).await),
        }
        sleep(DDL_PAUSE).await;
    }
}

async fn run(client: &mut Client, step: &Step) -> Result<(), tokio_postgres::Error> {
    match step.how {
        How::Transaction => {
            let transaction = client.transaction().await?;
            transaction.batch_execute(&step.sql).await?;
            transaction.commit().await
        }
        // Each in its own message, because several statements in one are a transaction.
        How::Index => {
            client.batch_execute("SET lock_timeout = 0").await?;
            let done = client.batch_execute(&step.sql).await;
            client.batch_execute("SET lock_timeout = '1s'").await?;
            done
        }
        How::Alone | How::Migrations => client.batch_execute(&step.sql).await,
    }
}

/// The error, and what to do. A constraint that the rows violate is dropped, so that it does not reject inserts.
async fn failed(client: &Client, table: &TableName, step: &Step, error: tokio_postgres::Error) -> AdoptError {
    let remedy = match error.code() {
        Some(&SqlState::CHECK_VIOLATION) => {
            let drop = format!("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}", table.quoted(), NOT_NULL);
            match client.batch_execute(&drop).await {
                Ok(()) => {
                    "Rows with NULL were inserted meanwhile. Set the column in them, and run the command again"
                }
                Err(_) => {
                    "Drop the constraint outbox_relay_not_null, set the column in all rows, and run the command again"
                }
            }
        }
        Some(&SqlState::UNIQUE_VIOLATION) => "Give every row its own ID, and run the command again",
        _ => "Fix the cause and run the command again: it continues where it stopped",
    };
    let (table, step) = (table.to_string(), step.purpose.clone());
    AdoptError::Step { table, step, source: error.into(), remedy }
}

/// The script; a comment if nothing is missing.
pub fn print(table: &TableName, steps: &[Step]) -> String {
    if steps.is_empty() {
        return format!("-- {table}: nothing is missing\n");
    }
    let mut script = table.render(sql!("adopt/header"));
    for Step { purpose, sql, how } in steps {
        let sql = sql.trim();
        script.push_str(&match how {
            How::Transaction | How::Migrations => format!("\n-- To {purpose}:\nBEGIN;\n{sql}\nCOMMIT;\n"),
            How::Alone => format!("\n-- To {purpose}:\n{sql}\n"),
            How::Index => format!(
                "\n-- To {purpose}; no insert waits for its lock:\nSET lock_timeout = 0;\n{sql}\nSET lock_timeout = '1s';\n"
            ),
        });
    }
    script
}
