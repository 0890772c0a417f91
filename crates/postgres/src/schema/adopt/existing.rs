//! Reads an existing table. Nothing here takes a lock that inserts wait for, or waits long for a lock.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use super::error::AdoptError;
use crate::connection::session::NO_VIEWS;
use crate::connection::transaction::open;
use crate::schema::check::columns::{self, FoundColumns, WANTED};
use crate::schema::check::hazards::{self, Unidentified};
use crate::schema::check::id_index::{self, IdIndex};
use crate::schema::check::index::{self, Pending};
use crate::schema::check::{SchemaFault, foreign_faults, relations, sequence, server_faults};
use crate::schema::migrate::{self, MigrationState, State};
use crate::table::{Column, TableName};

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

pub(super) async fn read(client: &mut Client, table: &TableName) -> Result<Existing, AdoptError> {
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
        hazards: hazards::faults(client, table, outbox).await?,
        unidentified: hazards::unidentified(client, table, outbox).await?,
        sequence: sequence::faults(client, table, outbox).await?,
        id_index: id_index::read(client, table, outbox).await?,
        pending: index::read(client, table, outbox).await?,
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
