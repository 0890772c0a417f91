//! The status of the migrations in the database.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};

use super::error::MigrateError;
use super::series::{Module, Series};
use super::version::Version;
use crate::connection::session::check_settings;
use crate::connection::transaction::open;
use crate::schema::own::{self, Foreign};
use crate::table::{TableName, quote_identifier};

/// A migration and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationState {
    /// The module that it belongs to; `None` for the outbox.
    pub module: Option<Module>,
    /// Its number.
    pub number: i32,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: State,
}

/// The state of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Applied with this text.
    Applied {
        /// When.
        at: SystemTime,
        /// The SHA-256 of the text.
        checksum: String,
    },
    /// Not applied yet.
    Pending,
    /// Applied with a different text.
    ChecksumDiffers {
        /// The SHA-256 of the applied text.
        recorded: String,
    },
    /// Applied by a newer version.
    Unknown {
        /// The lowest version of the relay that can run on it, if a valid one is recorded.
        min_relay: Option<Version>,
    },
}

impl State {
    /// Whether a newer version applied the migration, and this version can run on it.
    pub(crate) fn is_newer_and_compatible(&self) -> bool {
        matches!(self, State::Unknown { min_relay: Some(version) } if version.is_met())
    }
}

const SERVER: &str = "
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), current_user::text";

/// The system catalogs need no privileges, so that a missing table and a missing privilege can be distinguished.
const EXISTS: &str = "
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS s ON s.oid = c.relnamespace
    WHERE s.nspname = $1 AND c.relname = $2)";

/// Every migration of the outbox that this version or the database has, in order. Changes nothing.
pub async fn status(client: &mut Client, table: &TableName) -> Result<Vec<MigrationState>, MigrateError> {
    examine_series(client, table, Series::Outbox).await
}

/// [`status`], for a module.
pub async fn module_status(
    client: &mut Client,
    table: &TableName,
    module: Module,
) -> Result<Vec<MigrationState>, MigrateError> {
    examine_series(client, table, Series::Module(module)).await
}

/// [`status`], in a transaction.
pub async fn read(
    client: &impl GenericClient,
    table: &TableName,
) -> Result<Vec<MigrationState>, MigrateError> {
    read_series(client, table, Series::Outbox).await
}

/// [`read_series`], in a transaction of its own.
pub(super) async fn examine_series(
    client: &mut Client,
    table: &TableName,
    series: Series,
) -> Result<Vec<MigrationState>, MigrateError> {
    let fault =
        |error: tokio_postgres::Error| MigrateError::new(&table.to_string(), error.into(), String::new);
    let transaction = open(client, true, &check_settings()).await.map_err(fault)?;
    let states = read_series(&transaction, table, series).await?;
    transaction.rollback().await.map_err(fault)?;
    Ok(states)
}

/// Fails if the records table exists and is not the outbox's own. Call it before each use of the table: a view, a trigger or a
/// default of another role could run code as this role.
pub(super) async fn require_own(
    client: &impl GenericClient,
    table: &TableName,
    series: Series,
) -> Result<(), MigrateError> {
    let foreign = own::foreign(client, table, &[series.record_name(table)]).await;
    let foreign =
        foreign.map_err(|error| MigrateError::new(&table.to_string(), error.into(), String::new))?;
    match foreign.into_iter().next() {
        Some(Foreign { problem, remedy, .. }) => {
            Err(MigrateError::Foreign { table: series.record(table), problem, remedy })
        }
        None => Ok(()),
    }
}

pub(super) async fn read_series(
    client: &impl GenericClient,
    table: &TableName,
    series: Series,
) -> Result<Vec<MigrationState>, MigrateError> {
    let fault =
        |error: tokio_postgres::Error| MigrateError::new(&table.to_string(), error.into(), String::new);
    let server = client.query_typed(SERVER, &[]).await.map_err(fault)?;
    let Some(server) = server.first() else { return Ok(Vec::new()) };
    if server.get::<_, i32>(0) < 140_000 {
        return Err(MigrateError::ServerTooOld { table: table.to_string(), found: server.get(1) });
    }
    let role = quote_identifier(server.get(2));

    let relation = series.record_name(table);
    let exists = client
        .query_typed(EXISTS, &[(&table.schema(), Type::TEXT), (&relation, Type::TEXT)])
        .await
        .map_err(fault)?;
    require_own(client, table, series).await?;
    let mut recorded = BTreeMap::new();
    if exists.first().is_some_and(|row| row.get(0)) {
        let grant = || {
            let schema = quote_identifier(table.schema());
            let record = series.record(table);
            format!("GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {record} TO {role};")
        };
        let rows = client
            .query_typed(&series.read_sql(table), &[])
            .await
            .map_err(|error| MigrateError::new(&table.to_string(), error.into(), grant))?;
        recorded.extend(rows.iter().map(|row| (row.get(0), Record::from(row))));
    }
    Ok(compare(series, recorded))
}

struct Record {
    name: String,
    checksum: String,
    at: SystemTime,
    min_relay: Option<Version>,
}

impl From<&tokio_postgres::Row> for Record {
    fn from(row: &tokio_postgres::Row) -> Self {
        let min_relay = row.get::<_, Option<&str>>(4).and_then(|text| text.parse().ok());
        Self { name: row.get(1), checksum: row.get(2), at: row.get(3), min_relay }
    }
}

/// Compares the list of this version with the records.
fn compare(series: Series, mut recorded: BTreeMap<i32, Record>) -> Vec<MigrationState> {
    let module = series.module();
    let mut states = Vec::new();
    for migration in series.migrations() {
        let state = match recorded.remove(&migration.number) {
            None => State::Pending,
            Some(Record { checksum, at, .. }) if checksum == migration.checksum() => {
                State::Applied { at, checksum }
            }
            Some(Record { checksum, .. }) => State::ChecksumDiffers { recorded: checksum },
        };
        let (number, name) = (migration.number, migration.name.to_owned());
        states.push(MigrationState { module, number, name, state });
    }
    states.extend(recorded.into_iter().map(|(number, record)| MigrationState {
        module,
        number,
        name: record.name,
        state: State::Unknown { min_relay: record.min_relay },
    }));
    states
}
