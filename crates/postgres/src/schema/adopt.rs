//! Adopts an existing table: reads it, finds out why it cannot be an outbox, and what it lacks to be one, as steps that can be
//! printed or run.
//!
//! Each step can be repeated, and the migrations are the last one. After an interruption, the next run therefore finds the
//! rest. No step holds a lock that inserts wait for longer than it takes to change the system catalogs. Reading takes no such lock,
//! and waits for none for long.

use crate::columns::{Column, PayloadType};
use crate::connection::exec::{NEWER_SETTINGS, PLAIN_NAMES, open};
use crate::schema::check::server_faults;
use crate::schema::errors::{AdoptError, COLUMN, GRANT_MISSING, MigrateError, PENDING_INDEX, RELATION};
use crate::schema::migrate::{Around, DDL_LOCK_TIMEOUT};
use crate::schema::outbox::{
    Found, FoundColumns, IdIndex, Index, Outbox, Pending, TEXT, WANTED, Wanted, alter, limited, place,
};
use crate::schema::relations::Relations;
use crate::schema::series::{MigrationState, Series, State, Texts, print_pending, read_status};
use crate::schema::{migrate, outbox, relations};
use crate::sql::{bare, body, sql};
use crate::table::{TableName, quote_identifier};
use settings::doctor::Finding;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};

/// What a table lacks.
pub struct Adoption {
    /// In order; empty if nothing is missing.
    pub steps: Vec<Step>,
    texts: Texts,
}

/// Reads the table, and finds out what it lacks. Changes nothing. `rows` is the choice for the rows that the table has.
pub async fn plan(
    client: &mut Client,
    table: &TableName,
    rows: Option<ExistingRows>,
) -> Result<Adoption, AdoptError> {
    // Without a statement timeout, because the whole table may be read.
    let settings = format!(
        "{PLAIN_NAMES}; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '5s'; {NEWER_SETTINGS}"
    );
    let transaction = open(client, true, &settings).await?;
    let existing = read(&transaction, table).await?;
    transaction.rollback().await?;
    steps(table, &existing, rows)
}

/// What happens to the rows that the table has, if nothing shows that one of them was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingRows {
    /// The relay publishes them.
    Publish,
    /// They count as sent when the column is added.
    Sent,
}

#[derive(Debug)]
pub struct Step {
    /// What it does, for a person.
    pub purpose: String,
    sql: String,
    how: How,
}

impl Step {
    /// It may wait for other transactions, without a limit.
    pub fn waits(&self) -> bool {
        self.how == How::Unhurried
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// In one message, and so in one transaction. Inserts wait for its locks.
    Transaction,
    /// A statement outside of a transaction.
    Alone,
    /// The same, for an index or an update: no insert waits for its lock, so it may wait for other transactions.
    Unhurried,
    /// The migrations, which have their own locks.
    Migrations,
}

/// A table that can be an outbox, as it is.
struct Existing {
    columns: FoundColumns,
    unidentified: Option<Finding>,
    id_index: IdIndex,
    pending: Pending,
    /// There are rows, and nothing shows that one of them was sent.
    is_history_unknown: bool,
    migrations: Vec<MigrationState>,
}

/// Fails with all reasons why the table cannot be adopted, each with a remedy.
async fn read(transaction: &Transaction<'_>, table: &TableName) -> Result<Existing, AdoptError> {
    let client = transaction.client();
    let refused = |faults| AdoptError::Refused { table: table.to_string(), faults };
    let faults = server_faults(client).await?;
    if !faults.is_empty() {
        return Err(refused(faults));
    }
    let migrations = read_status(client, table, Series::Outbox).await?;
    // The steps change rows, which runs triggers.
    let foreign = relations::foreign(client, table, &[table.table().to_owned()], true).await?;
    // The planner of any further statement may run code of the owner.
    if !foreign.is_empty() {
        return Err(refused(foreign));
    }
    let outbox = match Relations::read(client, table).await?.outbox(table) {
        Some((oid, faults)) if faults.is_empty() => Outbox { client, table, oid },
        Some((_, faults)) => return Err(refused(faults)),
        None => {
            let remedy =
                "check [outbox] table and [postgres] url. To create a new outbox, run `outbox-relay migrate`";
            return Err(refused(vec![RELATION.found(table, "the table does not exist", remedy)]));
        }
    };
    let mut faults: Vec<Finding> = Vec::new();
    let columns = outbox.columns().await?;
    let existing = Existing {
        is_history_unknown: is_history_unknown(client, table, &columns, &migrations).await?,
        columns,
        unidentified: outbox.unidentified().await?,
        id_index: outbox.read_id_index().await?,
        pending: outbox.read_pending().await?,
        migrations,
    };
    for wanted in &WANTED {
        faults.extend(column_fault(client, table, &existing.columns, wanted).await?);
    }
    faults.extend(topic_fault(table, &existing.columns));
    faults.extend(outbox.hazard_faults().await?);
    // The sequence of a column of another type says nothing more.
    if !faults.iter().any(|fault| fault.place == place(table, Column::Id)) {
        faults.extend(outbox.sequence_faults(true).await?);
        let params = params![table.quoted() => TEXT, table.columns().name(Column::Id) => TEXT];
        let limits = client.query_typed(bare(sql!("check/sequence_limit")), &params).await?;
        faults.extend(limits.iter().map(|row| limited(table, row)));
    }
    faults.extend(other_faults(table, &existing.columns));
    if let Pending::Different(Index { name, definition, .. }) = &existing.pending {
        let problem = format!(
            "the index {name} has the name of the pending index, but a different definition: {definition}"
        );
        let remedy = format!("ALTER INDEX {} RENAME TO ...;", table.sibling(name));
        faults.push(PENDING_INDEX.found(table, problem, remedy));
    }
    faults.extend(name_faults(outbox, &existing).await?);
    // A step would identify the rows by the ID.
    if existing.unidentified.is_some() && existing.columns.get(Column::Id).is_some_and(|id| !id.not_null) {
        let problem = "it is nullable, so it cannot identify the rows for the publication";
        let remedy = format!("{} SET NOT NULL;", alter(table, Column::Id));
        faults.push(COLUMN.found(place(table, Column::Id), problem, remedy));
    }
    faults.extend(owner_fault(outbox).await?);
    if faults.is_empty() { Ok(existing) } else { Err(refused(faults)) }
}

/// A column without any time says nothing: it may have been added for the adoption. In an outbox, all rows may be unsent, because
/// sent ones are deleted.
async fn is_history_unknown(
    client: &Client,
    table: &TableName,
    columns: &FoundColumns,
    migrations: &[MigrationState],
) -> Result<bool, AdoptError> {
    let is_new = migrations.iter().all(|known| known.state == State::Pending);
    let has_column = columns.get(Column::SentAt).is_some();
    if has_column && !is_new || !exists(client, table, "true").await? {
        return Ok(false);
    }
    let is_sent = format!("{} IS NOT NULL", table.column(Column::SentAt));
    Ok(!has_column || !exists(client, table, &is_sent).await?)
}

/// Whether there is a row that meets the condition. May read the whole table.
async fn exists(client: &Client, table: &TableName, condition: &str) -> Result<bool, AdoptError> {
    let sql = format!("SELECT EXISTS (SELECT FROM {} WHERE {condition})", table.quoted());
    let found = client.query_typed_one(&sql, &[]).await.map_err(|error| match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => AdoptError::Locked { table: table.to_string() },
        _ => AdoptError::from(error),
    })?;
    Ok(found.get(0))
}

/// Whether `--adopt` adds the column if the table lacks it.
fn is_added(column: Column) -> bool {
    matches!(column, Column::EventId | Column::Headers | Column::CreatedAt | Column::SentAt)
}

async fn column_fault(
    client: &Client,
    table: &TableName,
    columns: &FoundColumns,
    wanted: &Wanted,
) -> Result<Option<Finding>, AdoptError> {
    let (column, outbox, sql) = (wanted.column, table.quoted(), table.column(wanted.column));
    let alter = alter(table, column);
    let fault = match columns.get(column) {
        None => missing(table, column),
        Some(found) if !wanted.types.contains(&found.type_name.as_str()) => {
            Some(wrong_type(table, wanted, found))
        }
        Some(found) if found.is_generated => Some((
            "it is generated, so a requeued dead letter could not keep its value".to_owned(),
            format!("{alter} DROP EXPRESSION;"),
        )),
        Some(found) if column == Column::SentAt && (found.has_default || found.not_null) => Some((
            "it has a default or is NOT NULL, so new events would count as sent".to_owned(),
            format!("{alter} DROP DEFAULT, ALTER COLUMN {sql} DROP NOT NULL;"),
        )),
        // A step fills in `event_id`.
        Some(found) if wanted.not_null && !found.never_null && column != Column::EventId => {
            exists(client, table, &format!("{sql} IS NULL")).await?.then(|| {
                (
                    "it is NULL in some rows, but must not be NULL".to_owned(),
                    format!("set it in the rows of: SELECT * FROM {outbox} WHERE {sql} IS NULL;"),
                )
            })
        }
        Some(_) => None,
    };
    Ok(fault.map(|(problem, remedy)| COLUMN.found(place(table, column), problem, remedy)))
}

fn missing(table: &TableName, column: Column) -> Option<(String, String)> {
    let problem = "the table has no such column".to_owned();
    if table.columns().is_renamed(column) {
        let remedy = match is_added(column) {
            true => format!("correct the setting, or remove it so that a column {column} is added"),
            false => "correct the setting".to_owned(),
        };
        return Some((problem, remedy));
    }
    let outbox = table.quoted();
    let remedy = match column {
        _ if is_added(column) => return None,
        Column::Id => format!(
            "set [outbox.columns] id to the column that numbers the rows, or add one after everything that waits has been sent, \
             which rewrites the table: ALTER TABLE {outbox} ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1);"
        ),
        _ => {
            let meaning = match column {
                Column::AggregateType => "the name that determines the topic",
                Column::AggregateId => "the Kafka key",
                Column::EventType => "the type of the event",
                _ => "the value of the record",
            };
            format!("set [outbox.columns] {column} to the column that has {meaning}")
        }
    };
    Some((problem, remedy))
}

fn wrong_type(table: &TableName, wanted: &Wanted, found: &Found) -> (String, String) {
    let (column, outbox) = (wanted.column, table.quoted());
    let types = wanted.types.join(" or ");
    if column == Column::Id && found.type_name == "uuid" {
        return (
            "the type is uuid. The relay publishes the events of a key in the order of their IDs, and random IDs do not \
             follow the order of inserts"
                .to_owned(),
            format!(
                "let everything that waits be sent, because the existing rows are numbered as they are stored. Then add a column \
                 for the order, which rewrites the table: ALTER TABLE {outbox} ADD COLUMN seq bigint GENERATED \
                 ALWAYS AS IDENTITY (CACHE 1); and set [outbox.columns] id = \"seq\" and event_id = {:?}. Or keep the \
                 table's name for a view on a new outbox: see `outbox-relay migrate --print-adapter debezium`",
                found.name
            ),
        );
    }
    let problem = format!("the type is {}, not {types}", found.type_name);
    let preferred = wanted.types.first().copied().unwrap_or_default();
    let alter =
        format!("{} TYPE {preferred} USING {}::{preferred};", alter(table, column), table.column(column));
    let remedy = match column {
        Column::Id => format!("change the type, which rewrites the table: {alter}"),
        Column::SentAt => {
            let (time, condition) = was_sent(&found.type_name, &table.column(column));
            format!(
                "stop the job that sets it, add a column of the right type under another name, fill it in, and set \
                 [outbox.columns] sent_at to that name: ALTER TABLE {outbox} ADD COLUMN outbox_sent_at {preferred}; UPDATE \
                 {outbox} SET outbox_sent_at = {time} WHERE {condition};"
            )
        }
        Column::CreatedAt => format!(
            "add a column of the right type under another name, and set [outbox.columns] created_at to that name: ALTER TABLE \
             {outbox} ADD COLUMN outbox_created_at {preferred} NOT NULL DEFAULT now();"
        ),
        _ => format!(
            "set [outbox.columns] {column} to a column of the right type, or, if the values can be converted, change the \
             type, which can rewrite the table: {alter}"
        ),
    };
    (problem, remedy)
}

/// When a row was sent and whether, by a column of another type. The relay must not publish what the application has sent.
fn was_sent(type_name: &str, column: &str) -> (String, String) {
    match type_name {
        "boolean" => ("now()".to_owned(), column.to_owned()),
        "timestamp without time zone" => {
            (format!("{column} AT TIME ZONE 'UTC'"), format!("{column} IS NOT NULL"))
        }
        _ => ("now()".to_owned(), "<the event was sent>".to_owned()),
    }
}

fn topic_fault(table: &TableName, columns: &FoundColumns) -> Option<Finding> {
    let (problem, remedy) = match columns.get(Column::Topic) {
        None if table.columns().is_renamed(Column::Topic) => {
            ("the table has no such column".to_owned(), "correct the setting, or remove it".to_owned())
        }
        Some(found) if !TEXT.contains(&found.type_name.as_str()) || found.is_generated => (
            format!("the type is {}, not {}, or it is generated", found.type_name, TEXT.join(" or ")),
            format!(
                "a column of this name contains the topic of an event. Rename it: ALTER TABLE {} RENAME COLUMN {} TO \
                 other_topic;",
                table.quoted(),
                table.column(Column::Topic)
            ),
        ),
        _ => return None,
    };
    Some(COLUMN.found(place(table, Column::Topic), problem, remedy))
}

/// The columns that an outbox does not have. A requeued event and `outbox_enqueue` cannot set them.
fn other_faults(table: &TableName, columns: &FoundColumns) -> Vec<Finding> {
    let is_own = |found: &Found| Column::ALL.iter().any(|column| table.columns().name(*column) == found.name);
    let requires_value =
        |found: &Found| found.not_null && !found.has_default && !found.is_generated && !found.is_identity;
    let others = columns.all.iter().filter(|found| !is_own(found) && requires_value(found));
    let fault = |found: &Found| {
        let place = format!("{table}, column {}", found.name);
        let problem = "it is NOT NULL and has no default, so a dead letter could not be requeued";
        let remedy = format!(
            "ALTER TABLE {} ALTER COLUMN {} SET DEFAULT ...; (or DROP NOT NULL)",
            table.quoted(),
            quote_identifier(&found.name)
        );
        COLUMN.found(place, problem, remedy)
    };
    others.map(fault).collect()
}

/// Indexes that are missing although their names are in use. The steps before them would already have changed the table.
async fn name_faults(outbox: Outbox<'_>, found: &Existing) -> Result<Vec<Finding>, tokio_postgres::Error> {
    let Outbox { client, table, .. } = outbox;
    let (id, pending) = (outbox::id_index_name(table), table.pending_index_name());
    let lacks_id = !found.id_index.is_valid && !found.id_index.is_unfinished;
    let lacks_pending = match &found.pending {
        Pending::Missing => true,
        Pending::Invalid(unfinished) => *unfinished != pending, // it is dropped before
        Pending::Valid | Pending::Different(_) => false,
    };
    let mut faults = Vec::new();
    for (is_missing, code, place, name, create) in [
        (lacks_id, &COLUMN, place(table, Column::Id), id, outbox::create_id_index(table)),
        (lacks_pending, &PENDING_INDEX, table.to_string(), pending, table.render(outbox::CREATE_PENDING)),
    ] {
        let params = params![table.schema() => TEXT, name => TEXT];
        if is_missing && client.query_typed_one(bare(sql!("migrate/exists")), &params).await?.get(0) {
            let problem = format!("the index is missing, and its name {name} is in use");
            let create = create.replace(&quote_identifier(&name), "another_name");
            let remedy =
                format!("rename the relation that has it, or create the index under another name: {create}");
            faults.push(code.found(place, problem, remedy));
        }
    }
    Ok(faults)
}

async fn owner_fault(outbox: Outbox<'_>) -> Result<Option<Finding>, tokio_postgres::Error> {
    const OWNER: &str =
        "SELECT pg_has_role(c.relowner, 'USAGE'), current_user::text FROM pg_class AS c WHERE c.oid = $1";
    let row = outbox.client.query_typed_one(OWNER, &params![outbox.oid => OID]).await?;
    let (is_owner, role): (bool, &str) = (row.get(0), row.get(1));
    let problem = format!("role {role} does not own the table, so it cannot add columns and indexes");
    let remedy = "connect as the owner, for example with OUTBOX_RELAY__POSTGRES__URL";
    Ok((!is_owner).then(|| GRANT_MISSING.found(outbox.table, problem, remedy)))
}

/// While NULLs are ruled out. The server then sets NOT NULL without reading the table again.
const NOT_NULL: &str = "outbox_relay_not_null";

/// Fills in the rows in the order of their IDs.
const FILL: &str = sql!("adopt/event_ids");

fn steps(table: &TableName, found: &Existing, rows: Option<ExistingRows>) -> Result<Adoption, AdoptError> {
    if found.is_history_unknown && rows.is_none() {
        return Err(AdoptError::ExistingRows { table: table.to_string() });
    }
    let rows = rows.filter(|_| found.is_history_unknown);
    let is_bytes = found.columns.payload() == Some(PayloadType::Bytea);
    let texts = Texts::of_adopted(if is_bytes { "bytea" } else { "json" });
    let mut steps = Vec::new();
    steps.extend(columns(table, found, rows));
    // Without a replica identity, the server rejects an UPDATE of a published table, so this step precedes the first UPDATE.
    let purpose = "identify the rows for a publication that contains the table";
    let identity = found.unidentified.as_ref().map(|fault| step(purpose, &fault.remedy, How::Transaction));
    // As early as possible, because events that are inserted before it count as sent. Without an identity it would fail.
    let (first, last) = match (existing_rows(table, found, rows), &identity) {
        (update, None) => (update, None),
        (update, Some(_)) => (None, update),
    };
    steps.extend(first);
    steps.extend(defaults(table, found));
    if !found.id_index.is_valid {
        let name = outbox::id_index_name(table);
        steps.extend(found.id_index.is_unfinished.then(|| drop_index(table, &name)));
        steps.push(step("create an index on the IDs", outbox::create_id_index(table), How::Unhurried));
    }
    steps.extend(identity);
    steps.extend(last);
    steps.extend(not_null(table, found));
    if let Pending::Invalid(name) = &found.pending {
        steps.push(drop_index(table, name));
    }
    if !matches!(found.pending, Pending::Valid) {
        steps.push(step("create the pending index", table.render(outbox::CREATE_PENDING), How::Unhurried));
    }
    if !found.migrations.iter().all(|known| known.state.is_compatible()) {
        let sql = print_pending(table, &found.migrations, texts);
        steps.push(step("create the other tables and the functions", sql, How::Migrations));
    }
    Ok(Adoption { steps, texts })
}

fn step(purpose: impl Into<String>, sql: impl Into<String>, how: How) -> Step {
    Step { purpose: purpose.into(), sql: sql.into(), how }
}

/// The columns that the table lacks.
fn columns(table: &TableName, found: &Existing, rows: Option<ExistingRows>) -> Option<Step> {
    let (outbox, mut sql, mut names, mut effect) = (table.quoted(), Vec::new(), Vec::new(), "");
    let is_lacking = |wanted: &&Wanted| is_added(wanted.column) && found.columns.get(wanted.column).is_none();
    for Wanted { column, types, .. } in WANTED.iter().filter(is_lacking) {
        let (name, sql_type) = (table.column(*column), types.first().copied().unwrap_or_default());
        // Without NOT NULL and without a default, the server does not rewrite the table.
        let mut default = if *column == Column::CreatedAt { " NOT NULL DEFAULT now()" } else { "" };
        if *column == Column::SentAt {
            (default, effect) = match rows {
                None => ("", ""),
                Some(ExistingRows::Publish) => ("", " (the relay will publish the existing rows)"),
                // The server stores the default of existing rows once, and does not rewrite the table.
                Some(ExistingRows::Sent) => (" DEFAULT now()", " (the existing rows count as sent)"),
            };
        }
        sql.push(format!("ALTER TABLE {outbox} ADD COLUMN IF NOT EXISTS {name} {sql_type}{default};"));
        if *column == Column::SentAt && !default.is_empty() {
            sql.push(format!("{} DROP DEFAULT;", alter(table, *column)));
        }
        names.push(column.name());
    }
    let purpose = format!("add {}{effect}", names.join(", "));
    (!sql.is_empty()).then(|| step(purpose, sql.join("\n"), How::Transaction))
}

/// In one statement, so that an interruption does not leave some of the rows unsent. Rows that are inserted meanwhile stay unsent.
fn existing_rows(table: &TableName, found: &Existing, rows: Option<ExistingRows>) -> Option<Step> {
    found.columns.get(Column::SentAt)?;
    let (outbox, sent_at) = (table.quoted(), table.column(Column::SentAt));
    let sql = format!("UPDATE {outbox} SET {sent_at} = now() WHERE {sent_at} IS NULL;");
    (rows == Some(ExistingRows::Sent)).then(|| step("record the existing rows as sent", sql, How::Unhurried))
}

/// The defaults that `outbox_enqueue` and writers rely on. An `event_id` without NULLs always comes from the application.
fn defaults(table: &TableName, found: &Existing) -> Option<Step> {
    let lacks = |column: &Column| match found.columns.get(*column) {
        Some(known) => !known.has_default && (*column == Column::CreatedAt || !known.not_null),
        None => *column == Column::EventId,
    };
    let defaults = [(Column::EventId, "gen_random_uuid()"), (Column::CreatedAt, "now()")];
    let defaults: Vec<_> = defaults.into_iter().filter(|(column, _)| lacks(column)).collect();
    let set =
        |(column, default): &(Column, &str)| format!("{} SET DEFAULT {default};", alter(table, *column));
    let names: Vec<&str> = defaults.iter().map(|(column, _)| column.name()).collect();
    let purpose = format!("set the default of {}", names.join(" and "));
    let sql: Vec<String> = defaults.iter().map(set).collect();
    (!sql.is_empty()).then(|| step(purpose, sql.join("\n"), How::Transaction))
}

fn drop_index(table: &TableName, name: &str) -> Step {
    let purpose = format!("drop the index {name}, whose build was interrupted");
    let sql = format!("DROP INDEX CONCURRENTLY IF EXISTS {};", table.sibling(name));
    step(purpose, sql, How::Unhurried)
}

/// NOT NULL for all columns that need it, without a long lock: the constraint is checked while rows are inserted.
fn not_null(table: &TableName, found: &Existing) -> Vec<Step> {
    let is_nullable = |wanted: &&Wanted| match found.columns.get(wanted.column) {
        Some(known) => wanted.not_null && !known.never_null,
        None => wanted.column == Column::EventId,
    };
    let columns: Vec<Column> = WANTED.iter().filter(is_nullable).map(|wanted| wanted.column).collect();
    if columns.is_empty() {
        return Vec::new();
    }
    let outbox = table.quoted();
    let names: Vec<String> = columns.iter().map(|column| table.column(*column)).collect();
    let mut steps = Vec::new();
    if columns.contains(&Column::EventId) {
        let sql = table.render(body(FILL).trim_end());
        steps.push(step("give existing rows an event_id", sql, How::Alone));
    }
    let drop = format!("ALTER TABLE {outbox} DROP CONSTRAINT IF EXISTS {NOT_NULL};");
    let condition: Vec<String> = names.iter().map(|name| format!("{name} IS NOT NULL")).collect();
    let add = format!(
        "{drop}\nALTER TABLE {outbox} ADD CONSTRAINT {NOT_NULL} CHECK ({}) NOT VALID;",
        condition.join(" AND ")
    );
    let set: String =
        columns.iter().map(|column| format!("{} SET NOT NULL;\n", alter(table, *column))).collect();
    let validate = format!("ALTER TABLE {outbox} VALIDATE CONSTRAINT {NOT_NULL};");
    let of = names.join(", ");
    steps.push(step(format!("reject NULL in {of}"), add, How::Transaction));
    steps.push(step(format!("check the rows for NULL in {of}"), validate, How::Alone));
    steps.push(step(format!("set NOT NULL for {of}"), set + &drop, How::Transaction));
    steps
}

/// The beginning of the script. Its settings are for the session, because indexes cannot be built in a transaction. The command
/// refuses a pooler in transaction mode. While a statement waits for a lock on the table, inserts wait too.
const HEADER: &str = sql!("adopt/header");

/// Tries the migrations and rolls them back, so that a missing privilege or a name that is in use stops the adoption before it
/// has changed the table. Sets the session up for [`apply`].
pub async fn prepare(client: &mut Client, table: &TableName, adoption: &Adoption) -> Result<(), AdoptError> {
    client.batch_execute(&format!("{}SET default_transaction_read_only = off", body(HEADER))).await?;
    // A statement that waits for other transactions ends if this command does. Not every platform can check.
    _ = client.batch_execute("SET client_connection_check_interval = '5s'").await;
    if adoption.steps.iter().any(|step| step.how == How::Migrations) {
        // The table may still lack columns that functions name.
        let around = Around { before: "SET LOCAL check_function_bodies = off", ..Around::default() };
        migrate::try_pending(client, table, adoption.texts, around).await?;
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
        return Ok(migrate::apply_as(client, table, adoption.texts, &mut Vec::new()).await?);
    }
    let done = migrate::retried(async || match run(client, step).await {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            Err(MigrateError::InUse { table: table.to_string() })
        }
        done => Ok(done),
    });
    match done.await? {
        Ok(()) => Ok(()),
        Err(error) => Err(failed(client, table, step, error).await),
    }
}

async fn run(client: &mut Client, step: &Step) -> Result<(), tokio_postgres::Error> {
    match step.how {
        // Each in its own message, because several statements in one are a transaction.
        How::Unhurried => {
            client.batch_execute("SET lock_timeout = 0").await?;
            let done = client.batch_execute(&step.sql).await;
            let reset = client.batch_execute(&format!("SET lock_timeout = '{DDL_LOCK_TIMEOUT}'")).await;
            done.and(reset)
        }
        How::Transaction | How::Alone | How::Migrations => client.batch_execute(&step.sql).await,
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
    let mut script = table.render(HEADER);
    for Step { purpose, sql, how } in steps {
        let sql = sql.trim();
        script.push_str(&match how {
            How::Transaction | How::Migrations => format!("\n-- To {purpose}:\nBEGIN;\n{sql}\nCOMMIT;\n"),
            How::Alone => format!("\n-- To {purpose}:\n{sql}\n"),
            How::Unhurried => format!(
                "\n-- To {purpose}; no insert waits for its lock:\nSET lock_timeout = 0;\n{sql}\nSET lock_timeout = \
                 '{DDL_LOCK_TIMEOUT}';\n"
            ),
        });
    }
    script
}
