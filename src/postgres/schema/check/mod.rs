//! The checks at start: is the outbox in the database as the relay's promises need it?
//!
//! Everything that is wrong is reported at once, each with the statement that mends it. Only the catalogue and the
//! two small tables of lanes and holds are read, so nothing here grows with the outbox.

mod columns;
mod fault;
mod index;
mod relations;
mod rows;
mod sequence;
mod server;

use tokio_postgres::Client;

pub use columns::PayloadType;
pub(crate) use columns::payload_type;
pub use fault::{CheckError, FaultKind, SchemaFault};

use crate::postgres::access::grants::{CHECK_RIGHTS, RELAY_RIGHTS, Right, union};
use crate::postgres::schema::migrate::{self, MigrateError, State};
use crate::postgres::table::TableName;

/// What the relay learns from a database that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// As `server_version_num`, for instance 180001.
    pub server_version_num: i32,
    /// The database's oid.
    pub database_oid: u32,
    /// The outbox table's oid, for instance to find its locks.
    pub outbox_oid: u32,
    /// The type of the payload column.
    pub payload: PayloadType,
    /// Whether the role is a superuser, which is more than the relay needs.
    pub is_superuser: bool,
}

/// Reads the schema and compares it with what the relay needs. Changes nothing, and needs no transaction.
pub async fn check(client: &Client, table: &TableName) -> Result<Facts, CheckError> {
    check_for(client, table, RELAY_RIGHTS).await
}

/// The same for a role that needs other rights than the relay.
pub(crate) async fn check_for(
    client: &Client,
    table: &TableName,
    rights: &[Right],
) -> Result<Facts, CheckError> {
    let server = server::read(client).await?;
    let mut faults = server.faults();
    if server.is_too_old() {
        return Err(CheckError::Faults(faults)); // its catalogue answers other questions
    }

    let relations = relations::read(client, table).await?;
    let missing = relations::missing_rights(client, table, &union(&[CHECK_RIGHTS, rights])).await?;
    let readable = |relation: &str| relations.has(relation) && !missing.prevents_reading(relation);
    faults.extend(missing.faults(table, &server.role));

    let mut complete = false;
    if !missing.prevents_reading("{migration}") {
        let pending = migration_faults(client, table, relations.has("{outbox}")).await?;
        complete = pending.is_empty();
        faults.extend(pending);
    }
    // A relation that a pending migration will make is no fault of its own.
    faults.extend(relations.faults(table, complete));

    let mut payload = None;
    if let Some(outbox) = relations.oid("{outbox}") {
        let columns = columns::read(client, outbox).await?;
        faults.extend(columns.faults(table));
        payload = columns.payload();
        faults.extend(index::faults(client, table, outbox).await?);
        faults.extend(sequence::faults(client, table, outbox).await?);
    }
    for counted in ["{hold}", "{blocked_key}", "{pause}"] {
        if let Some(relation) = relations.oid(counted) {
            faults.extend(rows::trigger_faults(client, table, counted, relation).await?);
        }
    }
    if readable("{lane}") {
        faults.extend(rows::lane_faults(client, table).await?);
    }
    if readable("{hold_version}") {
        faults.extend(rows::hold_version_faults(client, table).await?);
    }

    match (relations.oid("{outbox}"), payload) {
        (Some(outbox_oid), Some(payload)) if faults.is_empty() => Ok(Facts {
            server_version_num: server.version_num,
            database_oid: server.database_oid,
            outbox_oid,
            payload,
            is_superuser: server.is_superuser,
        }),
        _ => Err(CheckError::Faults(faults)),
    }
}

const MIGRATE: &str = "run `outbox-relay migrate --config FILE`";

/// The recorded migrations, compared with this version's.
async fn migration_faults(
    client: &Client,
    table: &TableName,
    outbox_exists: bool,
) -> Result<Vec<SchemaFault>, CheckError> {
    let states = match migrate::read_status(client, table).await {
        Ok(states) => states,
        Err(MigrateError::Server { source, .. }) => return Err(source.into()),
        Err(other) => {
            let remedy = "fix the cause of the error, then start again";
            return Ok(vec![SchemaFault::new(FaultKind::Migration, table, other.to_string(), remedy)]);
        }
    };
    let nothing_applied = states.iter().all(|known| known.state == State::Pending);
    if nothing_applied {
        let fault = if outbox_exists {
            SchemaFault::new(
                FaultKind::Migration,
                table,
                "the table exists, but no migration is recorded for it",
                "if it is not an outbox, choose another name in [outbox] table. If it was created manually, rename \
                 it and run `outbox-relay migrate --config FILE`",
            )
        } else {
            SchemaFault::new(
                FaultKind::Migration,
                table,
                "the outbox does not exist in this database",
                MIGRATE,
            )
        };
        return Ok(vec![fault]);
    }
    let fault = |known: migrate::MigrationState| {
        let (problem, remedy) = match known.state {
            State::Applied { .. } => return None,
            State::Pending => ("is not applied: the schema is older than this outbox-relay", MIGRATE),
            State::Unknown => (
                "is not known here: the schema is newer than this outbox-relay",
                "upgrade this binary to the version that migrated it",
            ),
            State::ChecksumDiffers { .. } => (
                "was applied with a different text than the one of this outbox-relay",
                "compare with `outbox-relay migrate --print --config FILE`, and use the version that applied it",
            ),
        };
        let problem = format!("migration {} ({}) {problem}", known.number, known.name);
        Some(SchemaFault::new(FaultKind::Migration, table, problem, remedy))
    };
    Ok(states.into_iter().filter_map(fault).collect())
}
