//! The checks at start: the schema must support the relay's guarantees.
//!
//! They report all faults at once, each with a remedy. They read only the system catalogs and two small tables, so they do
//! not become slower when the outbox grows. The checks of the relations, the columns and the indexes are in files of their own;
//! those of the server and of the rows that are part of the schema are here.

use crate::access::grants::{CHECK_PRIVILEGES, Privilege, RELAY_PRIVILEGES, for_topic_column, union};
use crate::columns::{Column, PayloadType};
use crate::connection::exec::examine;
use crate::schema::columns::TopicColumn;
use crate::schema::errors::{CheckError, MigrateError, SchemaFault, SchemaFaultKind, list};
use crate::schema::own::Foreign;
use crate::schema::relations::Other;
use crate::schema::series::{MigrationState, State};
use crate::schema::{columns, indexes, migrate, own, relations, series};
use crate::sql::{bare, sql};
use crate::table::TableName;
use relay::topic::TopicRules;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// Properties of a database that passed the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `server_version_num`, such as 180001.
    pub server_version_num: i32,
    pub database_oid: u32,
    pub outbox_oid: u32,
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
    examine(client, check_in(client, table, topic, RELAY_PRIVILEGES, By::Relay)).await
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
    Ok(read_server(client).await?.faults())
}

/// [`check`], for a command that needs privileges other than those of the relay. Pending migrations do not stop it.
pub async fn check_for(
    client: &Client,
    table: &TableName,
    topic: TopicColumn,
    privileges: &[Privilege],
) -> Result<Facts, CheckError> {
    examine(client, check_in(client, table, topic, privileges, By::Command)).await
}

async fn check_in(
    client: &Client,
    table: &TableName,
    topic: TopicColumn,
    privileges: &[Privilege],
    by: By,
) -> Result<Facts, CheckError> {
    let server = read_server(client).await?;
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
        faults.extend(act_faults(client, table, privileges).await?);
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
    let mut faults = indexes::hazard_faults(client, table, outbox).await?;
    let unidentified = indexes::unidentified(client, table, outbox).await?;
    faults.extend(unidentified.map(|unidentified| unidentified.fault(table)));
    faults.extend(indexes::pending_faults(client, table, outbox).await?);
    if columns.get(table.columns().name(Column::Id)).is_some() {
        faults.extend(indexes::id_index_faults(client, table, outbox).await?);
    }
    faults.extend(columns::sequence_faults(client, table, outbox).await?);
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
            faults.extend(trigger_faults(client, table, counted, relation).await?);
        }
    }
    if readable("{lane}") {
        faults.extend(lane_faults(client, table).await?);
    }
    if readable("{hold_version}") {
        faults.extend(hold_version_faults(client, table).await?);
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

pub(super) const MIGRATE: &str = "run `outbox-relay migrate --config FILE`";

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
    let found = format!("a relay does not start:{}", list(faults));
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
            format!("upgrade this binary to {}", series::to_upgrade_to(*min_relay)),
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

/// The oldest version that is tested.
const VERSION_NUM_MIN: i32 = 140_000;

/// Kafka consumers and the client library expect UTF-8.
const ENCODING: &str = "UTF8";

/// The server and the role.
///
/// A role whose transactions are read-only by default is not a fault: the relay requests READ WRITE in each transaction.
pub(super) struct Server {
    pub(super) version_num: i32,
    version: String,
    in_recovery: bool,
    pub(super) database_oid: u32,
    database: String,
    pub(super) role: String,
    pub(super) is_superuser: bool,
    encoding: String,
}

pub(super) async fn read_server(client: &Client) -> Result<Server, tokio_postgres::Error> {
    let row = client.query_typed_one(bare(sql!("check/server")), &[]).await?;
    Ok(Server {
        version_num: row.get(0),
        version: row.get(1),
        in_recovery: row.get(2),
        database_oid: row.get(3),
        database: row.get(4),
        role: row.get(5),
        is_superuser: row.get(6),
        encoding: row.get(7),
    })
}

impl Server {
    pub(super) fn is_too_old(&self) -> bool {
        self.version_num < VERSION_NUM_MIN
    }

    pub(super) fn faults(&self) -> Vec<SchemaFault> {
        let place = format!("database {}", self.database);
        let mut faults = Vec::new();
        if self.is_too_old() {
            let problem = format!("the server is PostgreSQL {}", self.version);
            faults.push(SchemaFault::new(
                SchemaFaultKind::Version,
                &place,
                problem,
                "upgrade it to 14 or later",
            ));
        }
        if self.in_recovery {
            faults.push(SchemaFault::new(
                SchemaFaultKind::Standby,
                &place,
                "the server is a standby and cannot be written to",
                "connect to the primary (with several hosts in [postgres] url, add target_session_attrs=read-write)",
            ));
        }
        if self.encoding != ENCODING {
            faults.push(SchemaFault::new(
                SchemaFaultKind::Encoding,
                &place,
                format!(
                    "its encoding is {}, so it may contain text that is not valid UTF-8, and a single such event \
                     would make reads fail",
                    self.encoding
                ),
                "create a database with ENCODING 'UTF8' TEMPLATE template0, and move the data there with pg_dump",
            ));
        }
        faults
    }
}

/// Part of the schema and not of the configuration, so that replicas cannot disagree.
const LANES: i32 = 64;

/// Limited, in case the table has many wrong rows.
const READ_LANES: &str = "SELECT lane::integer FROM {lane} ORDER BY lane LIMIT 1000";

pub(super) async fn lane_faults(
    client: &Client,
    table: &TableName,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let rows = client.query_typed(&table.render(READ_LANES), &[]).await?;
    let lanes: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let missing: Vec<i32> = (0..LANES).filter(|lane| !lanes.contains(lane)).collect();
    let place = table.render("{lane}");
    let mut faults = Vec::new();
    if !missing.is_empty() {
        faults.push(SchemaFault::new(
            SchemaFaultKind::Lanes,
            &place,
            format!(
                "the table has only {} of the {LANES} lanes, so events of a missing lane would never be sent",
                LANES as usize - missing.len()
            ),
            format!("INSERT INTO {place} SELECT generate_series(0, {}) ON CONFLICT DO NOTHING;", LANES - 1),
        ));
    }
    let surplus = lanes.len() + missing.len() - LANES as usize;
    if surplus > 0 {
        faults.push(SchemaFault::new(
            SchemaFaultKind::Lanes,
            &place,
            format!("rows that are not lanes from 0 to {}: {surplus}", LANES - 1),
            format!("DELETE FROM {place} WHERE lane NOT BETWEEN 0 AND {};", LANES - 1),
        ));
    }
    Ok(faults)
}

const COUNT_VERSIONS: &str = "SELECT count(*) FROM (SELECT FROM {hold_version} LIMIT 2) AS versions";

pub(super) async fn hold_version_faults(
    client: &Client,
    table: &TableName,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let count: i64 = client.query_typed_one(&table.render(COUNT_VERSIONS), &[]).await?.get(0);
    if count == 1 {
        return Ok(Vec::new());
    }
    let place = table.render("{hold_version}");
    let remedy =
        format!("stop all relays, then run: DELETE FROM {place}; INSERT INTO {place} DEFAULT VALUES;");
    let problem = format!(
        "the table must have exactly one row, but has {}",
        if count == 0 { "none" } else { "several" }
    );
    Ok(vec![SchemaFault::new(SchemaFaultKind::Holds, &place, problem, remedy)])
}

/// Triggers that are enabled as `O` or `A` fire in ordinary sessions.
const TRIGGER: &str = "
SELECT 1 FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = $1 AND t.tgenabled IN ('O', 'A') AND p.proname = $2";

/// What a command changes, and the trigger that records it.
const ACTS: [(&str, &str, &str); 5] = [
    ("INSERT", "{pause}", "pause_recorded"),
    ("DELETE", "{pause}", "resume_recorded"),
    ("UPDATE", "{dead_letter}", "requeue_recorded"),
    ("DELETE", "{dead_letter}", "discard_recorded"),
    ("DELETE", "{blocked_key}", "unblock_recorded"),
];

/// A command with these privileges must not act if its act would not be recorded.
pub(super) async fn act_faults(
    client: &Client,
    table: &TableName,
    privileges: &[Privilege],
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let acts = |(kind, on, _): &&(&str, &str, &str)| {
        privileges.iter().any(|privilege| privilege.kind == *kind && privilege.on == *on)
    };
    let wanted: Vec<_> = ACTS.iter().filter(acts).collect();
    let relations: Vec<String> = wanted.iter().map(|(_, on, _)| table.name_of(on)).collect();
    let triggers: Vec<&str> = wanted.iter().map(|(_, _, trigger)| *trigger).collect();
    let replays = privileges.iter().any(|privilege| privilege.on == "{record_act}");
    let [function, of_replays] = ["{act_recorded}", "{record_act}"].map(|name| table.name_of(name));
    let schema = table.schema();
    let params: [(&(dyn ToSql + Sync), Type); 6] = [
        (&schema, Type::TEXT),
        (&relations, Type::TEXT_ARRAY),
        (&triggers, Type::TEXT_ARRAY),
        (&function, Type::TEXT),
        (&of_replays, Type::TEXT),
        (&replays, Type::BOOL),
    ];
    let rows = client.query_typed(bare(sql!("check/unrecorded_acts")), &params).await?;
    let fault = |row: &tokio_postgres::Row| {
        let (name, trigger): (&str, Option<&str>) = (row.get(0), row.get(1));
        let place = table.sibling(name);
        let (what, enable) = match trigger {
            Some(trigger) => {
                let enable = format!(", or: ALTER TABLE {place} ENABLE TRIGGER {trigger};");
                (format!("the trigger {trigger} is missing or disabled"), enable)
            }
            None => ("the function is missing".to_owned(), String::new()),
        };
        let (problem, remedy) =
            (format!("{what}, so the act would not be recorded"), format!("{MIGRATE}{enable}"));
        SchemaFault::new(SchemaFaultKind::Relation, place, problem, remedy)
    };
    Ok(rows.iter().map(fault).collect())
}

pub(super) async fn trigger_faults(
    client: &Client,
    table: &TableName,
    counted: &str,
    relation: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let function = table.name_of("{hold_changed}");
    let rows = client.query_typed(TRIGGER, &[(&relation, Type::OID), (&function, Type::TEXT)]).await?;
    if !rows.is_empty() {
        return Ok(Vec::new());
    }
    let place = table.render(counted);
    let remedy = format!(
        "ALTER TABLE {place} ENABLE TRIGGER hold_changed; or recreate it as shown by `outbox-relay migrate --print \
         --config FILE`"
    );
    let problem =
        "the trigger hold_changed is missing or disabled, so the end of a hold or block could reorder events";
    Ok(vec![SchemaFault::new(SchemaFaultKind::Holds, place, problem, remedy)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version_num: i32, in_recovery: bool, encoding: &str) -> Server {
        Server {
            version_num,
            version: "13.20".to_owned(),
            in_recovery,
            database_oid: 1,
            database: "shop".to_owned(),
            role: "relay".to_owned(),
            is_superuser: false,
            encoding: encoding.to_owned(),
        }
    }

    #[test]
    fn old_servers_standbys_and_other_encodings_are_faults() {
        let kinds = |server: Server| server.faults().into_iter().map(|fault| fault.kind).collect::<Vec<_>>();
        assert_eq!(kinds(server(140_000, false, "UTF8")), []);
        assert_eq!(kinds(server(130_020, false, "UTF8")), [SchemaFaultKind::Version]);
        assert_eq!(kinds(server(180_001, true, "UTF8")), [SchemaFaultKind::Standby]);
        assert_eq!(kinds(server(180_001, false, "SQL_ASCII")), [SchemaFaultKind::Encoding]);
        assert_eq!(kinds(server(180_001, false, "LATIN1")), [SchemaFaultKind::Encoding]);
    }
}
