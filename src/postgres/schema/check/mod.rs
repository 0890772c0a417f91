//! The checks at start: the schema must support the relay's guarantees.
//!
//! They report all faults at once, each with a remedy. They read only the system catalogs and two small tables, so they do
//! not become slower when the outbox grows.

pub(crate) mod columns;
mod fault;
pub(crate) mod hazards;
pub(crate) mod id_index;
pub(crate) mod index;
pub(crate) mod relations;
mod rows;
pub(crate) mod sequence;
mod server;

use tokio_postgres::Client;

pub(crate) use columns::payload_type;
pub use columns::{PayloadType, TopicColumn};
pub use fault::{CheckError, SchemaFault, SchemaFaultKind};

use crate::config;
use crate::postgres::access::grants::{
    CHECK_PRIVILEGES, Privilege, RELAY_PRIVILEGES, for_topic_column, union,
};
use crate::postgres::schema::migrate::{self, MigrateError, State};
use crate::postgres::table::{Column, TableName};
use crate::relay::topic::TopicRules;

/// Properties of a database that passed the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `server_version_num`, such as 180001.
    pub server_version_num: i32,
    /// The OID of the database.
    pub database_oid: u32,
    /// The OID of the outbox table.
    pub outbox_oid: u32,
    /// The type of the payload column.
    pub payload: PayloadType,
    /// Whether the outbox has the optional column `topic`.
    pub has_topic: bool,
    /// Whether the role is a superuser, which is more than the relay needs.
    pub is_superuser: bool,
}

impl Facts {
    /// How the topics of this outbox are determined.
    pub fn topics(&self, outbox: &config::Outbox) -> TopicRules {
        TopicRules::from(outbox).with_column(self.has_topic)
    }
}

/// Checks that the schema meets the needs of the relay. Changes nothing, and needs no transaction.
pub async fn check(client: &Client, table: &TableName, topic: TopicColumn) -> Result<Facts, CheckError> {
    check_for(client, table, topic, RELAY_PRIVILEGES).await
}

/// The faults of the server and the database, before there are tables.
pub(crate) async fn server_faults(client: &Client) -> Result<Vec<SchemaFault>, CheckError> {
    Ok(server::read(client).await?.faults())
}

/// [`check`], for a role that needs privileges other than those of the relay.
pub(crate) async fn check_for(
    client: &Client,
    table: &TableName,
    topic: TopicColumn,
    privileges: &[Privilege],
) -> Result<Facts, CheckError> {
    let server = server::read(client).await?;
    let mut faults = server.faults();
    if server.is_too_old() {
        return Err(CheckError::Faults(faults)); // its system catalogs are different
    }

    let relations = relations::read(client, table).await?;
    let wanted = union(&[CHECK_PRIVILEGES, privileges, &for_topic_column(privileges)]);
    let missing = relations::missing_privileges(client, table, &wanted).await?;
    let readable = |relation: &str| relations.has(relation) && !missing.prevents_reading(relation);
    faults.extend(missing.faults(table, &server.role));

    let mut complete = false;
    if !missing.prevents_reading("{migration}") {
        let pending = migration_faults(client, table, relations.has("{outbox}")).await?;
        complete = pending.is_empty();
        faults.extend(pending);
    }
    // A relation that a pending migration creates is not a separate fault.
    faults.extend(relations.faults(table, complete));

    let (mut payload, mut has_topic) = (None, false);
    if let Some(outbox) = relations.oid("{outbox}") {
        let columns = columns::read(client, outbox).await?;
        faults.extend(columns.faults(table, topic));
        faults.extend(hazards::faults(client, table, outbox).await?);
        let unidentified = hazards::unidentified(client, table, outbox).await?;
        faults.extend(unidentified.map(|unidentified| unidentified.fault(table)));
        (payload, has_topic) = (columns.payload(table), columns.has_topic(table));
        faults.extend(index::faults(client, table, outbox).await?);
        if columns.get(table.columns().name(Column::Id)).is_some() {
            faults.extend(id_index::faults(client, table, outbox).await?);
        }
        if readable("{outbox}") {
            faults.extend(sequence::faults(client, table, outbox).await?);
        }
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
            has_topic,
            is_superuser: server.is_superuser,
        }),
        _ => Err(CheckError::Faults(faults)),
    }
}

const MIGRATE: &str = "run `outbox-relay migrate --config FILE`";

/// Compares the recorded migrations with those of this version.
async fn migration_faults(
    client: &Client,
    table: &TableName,
    outbox_exists: bool,
) -> Result<Vec<SchemaFault>, CheckError> {
    let states = match migrate::read_status(client, table).await {
        Ok(states) => states,
        Err(MigrateError::Server { source, .. }) => return Err(source.into()),
        Err(other) => {
            let remedy = "fix the cause of the error, then try again";
            return Ok(vec![SchemaFault::new(SchemaFaultKind::Migration, table, other.to_string(), remedy)]);
        }
    };
    let nothing_applied = states.iter().all(|known| known.state == State::Pending);
    if nothing_applied {
        let fault = if outbox_exists {
            SchemaFault::new(
                SchemaFaultKind::Migration,
                table,
                "the table exists, but no migration is recorded for it",
                format!(
                    "if it is your table of events, run `outbox-relay migrate --adopt {table} --config FILE`. If it has \
                     another purpose, choose another name in [outbox] table"
                ),
            )
        } else {
            SchemaFault::new(
                SchemaFaultKind::Migration,
                table,
                "the outbox does not exist in this database",
                format!("check [outbox] table and [postgres] url. For a new outbox, {MIGRATE}"),
            )
        };
        return Ok(vec![fault]);
    }
    let fault = |known: migrate::MigrationState| {
        let (problem, remedy) = match known.state {
            State::Applied { .. } => return None,
            State::Pending => ("is not applied: the schema is older than this outbox-relay", MIGRATE),
            State::Unknown => (
                "is unknown: the schema is newer than this outbox-relay",
                "upgrade this binary to the version that migrated it",
            ),
            State::ChecksumDiffers { .. } => (
                "was applied with SQL that differs from that of this outbox-relay",
                "compare with `outbox-relay migrate --print --config FILE`, and use the version that applied it",
            ),
        };
        let problem = format!("migration {} ({}) {problem}", known.number, known.name);
        Some(SchemaFault::new(SchemaFaultKind::Migration, table, problem, remedy))
    };
    Ok(states.into_iter().filter_map(fault).collect())
}
