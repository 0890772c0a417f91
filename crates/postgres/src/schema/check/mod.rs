//! The checks at start: the schema must support the relay's guarantees.
//!
//! They report all faults at once, each with a remedy. They read only the system catalogs and two small tables, so they do
//! not become slower when the outbox grows.

pub mod columns;
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

use crate::access::grants::{CHECK_PRIVILEGES, Privilege, RELAY_PRIVILEGES, for_topic_column, union};
use crate::connection::transaction::examine;
use crate::schema::migrate::{self, MigrateError, MigrationState, State};
use crate::schema::own::{self, Foreign};
use crate::table::{Column, TableName};
use relations::Other;
use relay::topic::TopicRules;

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
    /// How the schema differs from that of this version, in one sentence.
    pub difference: Option<String>,
}

impl Facts {
    /// How the topics of this outbox are determined.
    pub fn topics(&self, configured: impl Into<TopicRules>) -> TopicRules {
        configured.into().with_column(self.has_topic)
    }
}

/// Checks that the schema meets the needs of the relay, in a READ ONLY transaction.
pub async fn check(client: &Client, table: &TableName, topic: TopicColumn) -> Result<Facts, CheckError> {
    check_as(client, table, topic, RELAY_PRIVILEGES, By::Relay).await
}

/// What runs on the schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Relay,
    /// Runs on an older schema too, if the tables that it needs exist.
    Command,
}

/// The faults of the server and the database, before there are tables. Call it in a transaction.
pub async fn server_faults(client: &Client) -> Result<Vec<SchemaFault>, CheckError> {
    Ok(server::read(client).await?.faults())
}

/// [`check`], for a command that needs privileges other than those of the relay. Pending migrations do not stop it.
pub async fn check_for(
    client: &Client,
    table: &TableName,
    topic: TopicColumn,
    privileges: &[Privilege],
) -> Result<Facts, CheckError> {
    check_as(client, table, topic, privileges, By::Command).await
}

async fn check_as(
    client: &Client,
    table: &TableName,
    topic: TopicColumn,
    privileges: &[Privilege],
    by: By,
) -> Result<Facts, CheckError> {
    examine(client, check_in(client, table, topic, (privileges, by))).await
}

/// [`check_as`], in a transaction.
async fn check_in(
    client: &Client,
    table: &TableName,
    topic: TopicColumn,
    (privileges, by): (&[Privilege], By),
) -> Result<Facts, CheckError> {
    let server = server::read(client).await?;
    let mut faults = server.faults();
    if server.is_too_old() {
        return Err(CheckError::Faults(faults)); // its system catalogs are different
    }

    let foreign = own_faults(client, table, privileges).await?;
    if !foreign.is_empty() {
        faults.extend(foreign);
        return Err(CheckError::Faults(faults)); // before anything of them is read
    }

    let relations = relations::read(client, table).await?;
    let wanted = union(&[CHECK_PRIVILEGES, privileges, &for_topic_column(privileges)]);
    let missing = relations::missing_privileges(client, table, &wanted).await?;
    // Operators run a command with their own roles, while the configuration names the relay's.
    let other = match by {
        By::Command => relations::operators(client).await?.map(Other::Operators),
        By::Relay => relations::relay(client).await?.map(Other::Relay),
    };
    faults.extend(missing.faults(table, &server.role, other.as_ref()));

    let (mut complete, mut difference) = (false, None);
    if !missing.prevents_reading("{migration}") {
        let migrations = read_migrations(client, table, relations.has("{outbox}")).await?;
        complete = migrations.faults.is_empty();
        difference = migrations.difference;
        faults.extend(migrations.faults);
    }
    // A relation that a pending migration creates is not a separate fault.
    faults.extend(relations.faults(table, complete));

    let mut found = (None, false);
    if let Some(outbox) = relations.oid("{outbox}") {
        let columns = columns::read(client, outbox).await?;
        faults.extend(columns.faults(table, topic));
        faults.extend(outbox_faults(client, table, outbox, &columns).await?);
        found = (columns.payload(table), columns.has_topic(table));
    }
    let (payload, has_topic) = found;
    faults.extend(companion_faults(client, table, &relations, &missing).await?);

    if by == By::Command && is_older(&faults) {
        faults.retain(|fault| !may_migration_fix(fault.kind, payload.is_some()));
        faults.extend(relations.missing(table, privileges));
    }
    if by == By::Command {
        difference = without_relay(&mut faults, difference, privileges);
        faults.extend(rows::act_faults(client, table, privileges).await?);
    }
    match (relations.oid("{outbox}"), payload) {
        (Some(outbox_oid), Some(payload)) if faults.is_empty() => Ok(Facts {
            server_version_num: server.version_num,
            database_oid: server.database_oid,
            outbox_oid,
            payload,
            has_topic,
            is_superuser: server.is_superuser,
            difference,
        }),
        _ => Err(CheckError::Faults(faults)),
    }
}

/// The faults of the outbox apart from its columns.
async fn outbox_faults(
    client: &Client,
    table: &TableName,
    outbox: u32,
    columns: &columns::FoundColumns,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let mut faults = hazards::faults(client, table, outbox).await?;
    let unidentified = hazards::unidentified(client, table, outbox).await?;
    faults.extend(unidentified.map(|unidentified| unidentified.fault(table)));
    faults.extend(index::faults(client, table, outbox).await?);
    if columns.get(table.columns().name(Column::Id)).is_some() {
        faults.extend(id_index::faults(client, table, outbox).await?);
    }
    faults.extend(sequence::faults(client, table, outbox).await?);
    Ok(faults)
}

/// The faults of the relay's own tables, as far as it may read them.
async fn companion_faults(
    client: &Client,
    table: &TableName,
    relations: &relations::Relations,
    missing: &relations::MissingPrivileges,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let mut faults = Vec::new();
    let readable = |relation: &str| relations.has(relation) && !missing.prevents_reading(relation);
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
    Ok(faults)
}

/// Relations and functions that another role has made, and code of the outbox that a superuser with these privileges would run.
async fn own_faults(
    client: &Client,
    table: &TableName,
    privileges: &[Privilege],
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let writes = |privilege: &Privilege| privilege.on == "{outbox}" && privilege.kind != "SELECT";
    let mut names = relations::own_names(table);
    names.extend(privileges.iter().any(writes).then(|| table.name_of("{outbox}")));
    foreign_faults(client, table, &names).await
}

/// Those of these names that belong to a relation or function that is not ours.
pub(crate) async fn foreign_faults(
    client: &Client,
    table: &TableName,
    names: &[String],
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let foreign = own::foreign(client, table, names).await?;
    let fault = |Foreign { name, problem, remedy }| {
        SchemaFault::new(SchemaFaultKind::Relation, name, problem, remedy)
    };
    Ok(foreign.into_iter().map(fault).collect())
}

const MIGRATE: &str = "run `outbox-relay migrate --config FILE`";

/// Whether this may be missing only because a migration is pending. A command cannot work without the payload.
fn may_migration_fix(kind: SchemaFaultKind, has_payload: bool) -> bool {
    use SchemaFaultKind::{Column, Index, Pending, Sequence};
    matches!(kind, Pending | Index | Sequence) || kind == Column && has_payload
}

/// A command that inserts no event works while only the sequence is at fault: operators need commands most when something is wrong.
/// The fault becomes part of the warning.
fn without_relay(
    faults: &mut Vec<SchemaFault>,
    difference: Option<String>,
    privileges: &[Privilege],
) -> Option<String> {
    let inserts = |privilege: &Privilege| privilege.on == "{outbox}" && privilege.kind == "INSERT";
    let of_others = |fault: &SchemaFault| fault.kind != SchemaFaultKind::Sequence;
    if faults.is_empty() || faults.iter().any(of_others) || privileges.iter().any(inserts) {
        return difference;
    }
    let found = format!("a relay does not start:{}", fault::list(faults));
    faults.clear();
    Some(difference.map_or_else(|| found.clone(), |known| format!("{known}; {found}")))
}

/// Whether only a migration is missing, which may also cause other faults.
pub fn is_older(faults: &[SchemaFault]) -> bool {
    let has = |kind| faults.iter().any(|fault| fault.kind == kind);
    has(SchemaFaultKind::Pending) && !has(SchemaFaultKind::Migration)
}

struct Migrations {
    faults: Vec<SchemaFault>,
    /// How the schema differs from that of this version, in one sentence.
    difference: Option<String>,
}

impl Migrations {
    fn unusable(table: &TableName, problem: impl Into<String>, remedy: impl Into<String>) -> Migrations {
        let fault = SchemaFault::new(SchemaFaultKind::Migration, table, problem, remedy);
        Migrations { faults: vec![fault], difference: None }
    }
}

/// Compares the recorded migrations with those of this version.
async fn read_migrations(
    client: &Client,
    table: &TableName,
    outbox_exists: bool,
) -> Result<Migrations, CheckError> {
    let states = match migrate::read_status(client, table).await {
        Ok(states) => states,
        Err(MigrateError::Server { source, .. }) => return Err(source.into()),
        Err(other) => {
            return Ok(Migrations::unusable(
                table,
                other.to_string(),
                "fix the cause of the error, then try again",
            ));
        }
    };
    let nothing_applied = states.iter().all(|known| known.state == State::Pending);
    if nothing_applied && outbox_exists {
        return Ok(Migrations::unusable(
            table,
            "the table exists, but no migration is recorded for it",
            format!(
                "if it is your table of events, run `outbox-relay migrate --adopt {table} --config FILE`. If it has \
                 another purpose, choose another name in [outbox] table"
            ),
        ));
    }
    if nothing_applied {
        return Ok(Migrations::unusable(
            table,
            "the outbox does not exist in this database",
            format!("check [outbox] table and [postgres] url. For a new outbox, {MIGRATE}"),
        ));
    }
    let faults = states.iter().filter_map(|known| migration_fault(table, known)).collect();
    Ok(Migrations { faults, difference: difference(&states) })
}

fn migration_fault(table: &TableName, known: &MigrationState) -> Option<SchemaFault> {
    let (kind, problem, remedy) = match &known.state {
        State::Applied { .. } => return None,
        newer if newer.is_newer_and_compatible() => return None,
        State::Pending => (
            SchemaFaultKind::Pending,
            "is not applied: the schema is older than this outbox-relay",
            MIGRATE.to_owned(),
        ),
        State::Unknown { min_relay } => (
            SchemaFaultKind::Migration,
            "is unknown: the schema is newer than this outbox-relay",
            format!("upgrade this binary to {}", migrate::to_upgrade_to(*min_relay)),
        ),
        State::ChecksumDiffers { .. } => (
            SchemaFaultKind::Migration,
            "was applied with SQL that differs from that of this outbox-relay",
            "compare with `outbox-relay migrate --print --config FILE`, and use the version that applied it"
                .to_owned(),
        ),
    };
    let problem = format!("migration {} ({}) {problem}", known.number, known.name);
    Some(SchemaFault::new(kind, table, problem, remedy))
}

/// Describes a schema that is older or newer than that of this version.
fn difference(states: &[MigrationState]) -> Option<String> {
    let named = |of: fn(&State) -> bool| {
        let named = states.iter().filter(|known| of(&known.state));
        let named: Vec<String> =
            named.map(|known| format!("migration {} ({})", known.number, known.name)).collect();
        (!named.is_empty()).then(|| named.join(", "))
    };
    let own = env!("CARGO_PKG_VERSION");
    let older = named(|state| *state == State::Pending).map(|pending| {
        format!("the schema is older than outbox-relay {own}, {pending} is pending. To apply it, {MIGRATE}")
    });
    older.or_else(|| {
        named(State::is_newer_and_compatible).map(|newer| {
            format!("the schema is newer than outbox-relay {own}, which can still run on {newer}")
        })
    })
}
