//! An existing table as it is, and why it cannot be an outbox. Nothing here takes a lock that inserts wait for, or waits long for a
//! lock.

use crate::columns::Column;
use crate::connection::exec::{NO_VIEWS, open};
use crate::schema::check::{foreign_faults, server_faults};
use crate::schema::columns::{Found, FoundColumns, TEXT, WANTED, Wanted, place};
use crate::schema::errors::{AdoptError, SchemaFault, SchemaFaultKind};
use crate::schema::indexes::{IdIndex, Pending, Unidentified};
use crate::schema::series::{MigrationState, State};
use crate::schema::{columns, indexes, migrate, relations};
use crate::table::{TableName, quote_identifier};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

/// A table as it is.
pub(super) struct Existing {
    /// Of the server and of the table as a whole.
    pub(super) faults: Vec<SchemaFault>,
    /// `None` if the table does not exist, or has a fault.
    pub(super) table: Option<ExistingTable>,
    pub(super) migrations: Vec<MigrationState>,
}

pub(super) struct ExistingTable {
    pub(super) columns: FoundColumns,
    pub(super) hazards: Vec<SchemaFault>,
    pub(super) unidentified: Option<Unidentified>,
    pub(super) sequence: Vec<SchemaFault>,
    pub(super) id_index: IdIndex,
    pub(super) pending: Pending,
    pub(super) has_rows: bool,
    /// Columns that must not be NULL, but are NULL in a row. Without `event_id`, which is filled in.
    pub(super) with_null: Vec<Column>,
    /// Whether the role may change the table.
    pub(super) is_owner: bool,
    pub(super) role: String,
}

const OWNER: &str = "
SELECT pg_has_role(c.relowner, 'USAGE'), current_user::text FROM pg_class AS c WHERE c.oid = $1";

impl Existing {
    /// Whether every migration of this version is applied.
    pub(super) fn is_migrated(&self) -> bool {
        let is_applied =
            |state: &State| matches!(state, State::Applied { .. }) || state.is_newer_and_compatible();
        self.migrations.iter().all(|known| is_applied(&known.state))
    }
}

/// Without a statement timeout, because the whole table may be read.
const SETTINGS: &str = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '5s'";

pub(super) async fn read_existing(client: &mut Client, table: &TableName) -> Result<Existing, AdoptError> {
    let transaction = open(client, true, &format!("{SETTINGS}; {NO_VIEWS}")).await?;
    let existing = read_in(&transaction, table).await?;
    transaction.rollback().await?;
    Ok(existing)
}

async fn read_in(transaction: &Transaction<'_>, table: &TableName) -> Result<Existing, AdoptError> {
    let client = transaction.client();
    let mut faults = server_faults(client).await?;
    if !faults.is_empty() {
        return Ok(Existing { faults, table: None, migrations: Vec::new() });
    }
    let migrations = migrate::read_status(client, table).await?;
    // The steps change rows, which runs triggers.
    faults.extend(foreign_faults(client, table, &[table.name_of("{outbox}")]).await?);
    let found = relations::outbox_faults(client, table).await?;
    let mut existing = None;
    if let Some((outbox, of_relation)) = found {
        if of_relation.is_empty() {
            existing = Some(read_table(client, table, outbox).await?);
        }
        faults.extend(of_relation);
    }
    Ok(Existing { faults, table: existing, migrations })
}

async fn read_table(client: &Client, table: &TableName, outbox: u32) -> Result<ExistingTable, AdoptError> {
    let columns = columns::read(client, outbox).await?;
    let owner = client.query_typed_one(OWNER, &[(&outbox, Type::OID)]).await?;
    let mut with_null = Vec::new();
    for wanted in WANTED.iter().filter(|wanted| wanted.not_null && wanted.column != Column::EventId) {
        let found = columns.get(table.columns().name(wanted.column));
        if found.is_some_and(|found| !found.not_null) && exists(client, table, Some(wanted.column)).await? {
            with_null.push(wanted.column);
        }
    }
    Ok(ExistingTable {
        hazards: indexes::hazard_faults(client, table, outbox).await?,
        unidentified: indexes::unidentified(client, table, outbox).await?,
        sequence: columns::sequence_faults(client, table, outbox).await?,
        id_index: indexes::read_id_index(client, table, outbox).await?,
        pending: indexes::read_pending(client, table, outbox).await?,
        has_rows: exists(client, table, None).await?,
        with_null,
        is_owner: owner.get(0),
        role: owner.get(1),
        columns,
    })
}

/// Whether there is a row, or one in which the column is NULL. The latter reads the whole table.
async fn exists(client: &Client, table: &TableName, null: Option<Column>) -> Result<bool, AdoptError> {
    let condition = null.map(|column| format!(" WHERE {} IS NULL", table.column(column))).unwrap_or_default();
    let sql = format!("SELECT EXISTS (SELECT FROM {}{condition})", table.quoted());
    let found = client.query_typed_one(&sql, &[]).await.map_err(|error| match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => AdoptError::Locked { table: table.to_string() },
        _ => AdoptError::from(error),
    })?;
    Ok(found.get(0))
}

/// All reasons, each with a remedy.
pub(super) fn refusals(table: &TableName, existing: &Existing) -> Vec<SchemaFault> {
    let mut faults = existing.faults.clone();
    match &existing.table {
        None if faults.is_empty() => faults.push(SchemaFault::new(
            SchemaFaultKind::Relation,
            table,
            "the table does not exist",
            "check [outbox] table and [postgres] url. To create a new outbox, run `outbox-relay migrate`",
        )),
        None => {}
        Some(found) => {
            faults.extend(WANTED.iter().filter_map(|wanted| column(table, found, wanted)));
            faults.extend(topic(table, found));
            faults.extend(found.hazards.iter().cloned());
            // The sequence of a column of another type says nothing more.
            if !faults.iter().any(|fault| fault.place == place(table, Column::Id)) {
                faults.extend(found.sequence.iter().cloned());
            }
            faults.extend(others(table, found));
            faults.extend(index(table, found));
            faults.extend(owner(table, found));
        }
    }
    faults
}

/// Whether `--adopt` adds the column if the table lacks it.
pub(super) fn is_added(column: Column) -> bool {
    matches!(column, Column::EventId | Column::Headers | Column::CreatedAt | Column::SentAt)
}

fn column(table: &TableName, existing: &ExistingTable, wanted: &Wanted) -> Option<SchemaFault> {
    let (column, outbox) = (wanted.column, table.quoted());
    let (name, sql) = (table.columns().name(column), table.column(column));
    let fault = |problem: String, remedy: String| {
        Some(SchemaFault::new(SchemaFaultKind::Column, place(table, column), problem, remedy))
    };
    let Some(found) = existing.columns.get(name) else {
        return missing(table, column).and_then(|(problem, remedy)| fault(problem, remedy));
    };
    if !wanted.types.contains(&found.type_name.as_str()) {
        let (problem, remedy) = wrong_type(table, wanted, found);
        return fault(problem, remedy);
    }
    if found.is_generated {
        let problem = "it is generated, so a requeued dead letter could not keep its value".to_owned();
        return fault(problem, format!("ALTER TABLE {outbox} ALTER COLUMN {sql} DROP EXPRESSION;"));
    }
    if column == Column::SentAt && (found.has_default || found.not_null) {
        let problem = "it has a default or is NOT NULL, so new events would count as sent".to_owned();
        let alter = format!("ALTER TABLE {outbox} ALTER COLUMN {sql}");
        return fault(problem, format!("{alter} DROP DEFAULT, ALTER COLUMN {sql} DROP NOT NULL;"));
    }
    if existing.with_null.contains(&column) {
        let problem = "it is NULL in some rows, but must not be NULL".to_owned();
        return fault(problem, format!("set it in the rows of: SELECT * FROM {outbox} WHERE {sql} IS NULL;"));
    }
    None
}

fn missing(table: &TableName, column: Column) -> Option<(String, String)> {
    let outbox = table.quoted();
    if table.columns().is_renamed(column) {
        let remedy = match is_added(column) {
            true => format!("correct the setting, or remove it so that a column {column} is added"),
            false => "correct the setting".to_owned(),
        };
        return Some(("the table has no such column".to_owned(), remedy));
    }
    let remedy = match column {
        _ if is_added(column) => return None,
        Column::Id => format!(
            "set [outbox.columns] id to the column that numbers the rows, or add one, which rewrites the table: ALTER TABLE \
             {outbox} ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1);"
        ),
        _ => format!("set [outbox.columns] {column} to the column that has {}", meaning(column)),
    };
    Some(("the table has no such column".to_owned(), remedy))
}

/// What a column contains that only the application knows.
fn meaning(column: Column) -> &'static str {
    match column {
        Column::AggregateType => "the name that determines the topic",
        Column::AggregateId => "the Kafka key",
        Column::EventType => "the type of the event",
        _ => "the value of the record",
    }
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
                "add a column for the order, which rewrites the table: ALTER TABLE {outbox} ADD COLUMN seq bigint GENERATED \
                 ALWAYS AS IDENTITY (CACHE 1); and set [outbox.columns] id = \"seq\" and event_id = {:?}. Or keep the \
                 table's name for a view on a new outbox: see `outbox-relay migrate --print-adapter debezium`",
                found.name
            ),
        );
    }
    let problem = format!("the type is {}, not {types}", found.type_name);
    let preferred = wanted.types.first().copied().unwrap_or_default();
    let alter = format!(
        "ALTER TABLE {outbox} ALTER COLUMN {sql} TYPE {preferred} USING {sql}::{preferred};",
        sql = table.column(column)
    );
    let remedy = match column {
        Column::Id => format!("change the type, which rewrites the table: {alter}"),
        _ if is_added(column) => format!(
            "add a column of the right type under another name, and set [outbox.columns] {column} to that name: ALTER TABLE \
             {outbox} ADD COLUMN outbox_{column} {preferred}{};",
            default_of(column)
        ),
        _ => format!(
            "set [outbox.columns] {column} to a column of the right type, or change the type, which can rewrite the table: \
             {alter}"
        ),
    };
    (problem, remedy)
}

/// The definition of an added column after its type.
pub(super) fn default_of(column: Column) -> &'static str {
    match column {
        // Without NOT NULL and without a default, the server does not rewrite the table.
        Column::CreatedAt => " NOT NULL DEFAULT now()",
        _ => "",
    }
}

/// The optional column.
fn topic(table: &TableName, existing: &ExistingTable) -> Option<SchemaFault> {
    let found = existing.columns.get(table.columns().topic()?);
    let (problem, remedy) = match found {
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
    Some(SchemaFault::new(SchemaFaultKind::Column, place(table, Column::Topic), problem, remedy))
}

/// The columns that an outbox does not have. A requeued event and `outbox_enqueue` cannot set them.
fn others(table: &TableName, existing: &ExistingTable) -> Vec<SchemaFault> {
    let is_own = |found: &Found| Column::ALL.iter().any(|column| table.columns().name(*column) == found.name);
    let requires_value =
        |found: &Found| found.not_null && !found.has_default && !found.is_generated && !found.is_identity;
    let others = existing.columns.0.iter().filter(|found| !is_own(found) && requires_value(found));
    let fault = |found: &Found| {
        let place = format!("{table}, column {}", found.name);
        let problem = "it is NOT NULL and has no default, so a dead letter could not be requeued";
        let remedy = format!(
            "ALTER TABLE {} ALTER COLUMN {} SET DEFAULT ...; (or DROP NOT NULL)",
            table.quoted(),
            quote_identifier(&found.name)
        );
        SchemaFault::new(SchemaFaultKind::Column, place, problem, remedy)
    };
    others.map(fault).collect()
}

fn index(table: &TableName, existing: &ExistingTable) -> Option<SchemaFault> {
    let Pending::Different { name, definition } = &existing.pending else { return None };
    let problem = format!(
        "the index {name} has the name of the pending index, but a different definition: {definition}"
    );
    let remedy = format!("ALTER INDEX {} RENAME TO ...;", table.sibling(name));
    Some(SchemaFault::new(SchemaFaultKind::Index, table, problem, remedy))
}

fn owner(table: &TableName, existing: &ExistingTable) -> Option<SchemaFault> {
    if existing.is_owner {
        return None;
    }
    let problem =
        format!("role {} does not own the table, so it cannot add columns and indexes", existing.role);
    let remedy = "connect as the owner, for example with OUTBOX_RELAY__POSTGRES__URL";
    Some(SchemaFault::new(SchemaFaultKind::Grant, table, problem, remedy))
}
