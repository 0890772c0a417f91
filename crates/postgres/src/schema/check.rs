//! The checks at start: the schema must support the relay's guarantees.
//!
//! They report all faults at once, each with a remedy. They read only the system catalogs and two small tables, so they do
//! not become slower when the outbox grows. The checks of the relations are in `relations.rs`, those of the columns and the indexes in
//! `outbox.rs`, and those of the server and of the rows that are part of the schema are here.

use crate::access::grants::{CHECK_PRIVILEGES, Privilege, RELAY_PRIVILEGES, for_topic_column, union};
use crate::columns::{Column, PayloadType};
use crate::connection::exec::examine;
use crate::schema::errors::{
    COLUMN, CheckError, ENCODING, HOLD_COUNT, MIGRATE, MIGRATION, MigrateError, PENDING_INDEX, RELATION,
    SEQUENCE, SERVER_TOO_OLD, STANDBY, list,
};
use crate::schema::outbox::Outbox;
use crate::schema::relations::{MissingPrivileges, RELATIONS, Relations};
use crate::schema::series::{MigrationState, Series, State};
use crate::schema::{errors, relations, series};
use crate::sql::{bare, sql};
use crate::table::TableName;
use relay::lanes::LANES;
use relay::topic::TopicRules;
use settings::doctor::Finding;
use tokio_postgres::{Client, Error, Row};

/// Properties of a database that passed the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `server_version_num`, such as 180001.
    pub server_version_num: i32,
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

/// Checks that the schema meets the needs of the relay, or of a command with these privileges, in a READ ONLY transaction.
/// `requires_topic` is true if `[outbox] topic_allow` is set. The outbox must then have the column `topic`.
///
/// Pending migrations do not stop a command: it runs on an older schema too, if the tables that it needs exist.
pub async fn check(
    client: &Client,
    table: &TableName,
    requires_topic: bool,
    command: Option<&[Privilege]>,
) -> Result<Facts, CheckError> {
    examine(client, check_in(client, table, requires_topic, command)).await
}

/// The faults of the server and the database, before there are tables. Call it in a transaction.
pub async fn server_faults(client: &Client) -> Result<Vec<Finding>, CheckError> {
    Ok(Server::read(client).await?.faults())
}

async fn check_in(
    client: &Client,
    table: &TableName,
    requires_topic: bool,
    command: Option<&[Privilege]>,
) -> Result<Facts, CheckError> {
    let privileges = command.unwrap_or(RELAY_PRIVILEGES);
    let server = Server::read(client).await?;
    let mut faults = server.faults();
    if server.is_too_old() {
        return Err(CheckError::Faults(faults)); // its system catalogs are different
    }

    let foreign = foreign_faults(client, table, privileges).await?;
    if !foreign.is_empty() {
        faults.extend(foreign);
        return Err(CheckError::Faults(faults)); // before anything of them is read
    }

    let relations = Relations::read(client, table).await?;
    let for_topic = table.columns().topic().map(|_| for_topic_column(privileges)).unwrap_or_default();
    let wanted = union(&[CHECK_PRIVILEGES, privileges, &for_topic]);
    let missing = MissingPrivileges::read(client, table, &wanted).await?;
    let other = relations::other_role(client, command.is_some()).await?;
    faults.extend(missing.faults(table, &server.role, other.as_deref(), command.is_some()));

    let outbox = relations.oid("{outbox}");
    let mut migrations = Migrations::default();
    let mut complete = false;
    if !missing.prevents_reading("{migration}") {
        migrations = read_migrations(client, table, outbox.is_some()).await?;
        complete = migrations.faults.is_empty();
        faults.append(&mut migrations.faults);
    }
    // A relation that a pending migration creates is not a separate fault.
    faults.extend(relations.faults(table, complete));

    let (mut payload, mut has_topic) = (None, false);
    if let Some(oid) = outbox {
        let outbox = Outbox { client, table, oid };
        let columns = outbox.columns().await?;
        faults.extend(columns.faults(table, requires_topic));
        faults.extend(outbox.faults(&columns).await?);
        (payload, has_topic) = (columns.payload(), columns.get(Column::Topic).is_some());
    }
    faults.extend(companion_faults(client, table, &relations, &missing).await?);

    if let Some(privileges) = command {
        if migrations.is_older {
            faults.retain(|fault| !may_migration_fix(fault, payload.is_some()));
            faults.extend(relations.missing(table, privileges));
            migrations.is_older = false;
        }
        migrations.difference = without_relay(&mut faults, migrations.difference, privileges);
        faults.extend(act_faults(client, table, privileges).await?);
    }
    match payload {
        Some(payload) if faults.is_empty() => Ok(Facts {
            server_version_num: server.version_num,
            payload,
            has_topic,
            is_superuser: server.is_superuser,
            difference: migrations.difference,
        }),
        _ if migrations.is_older => Err(CheckError::Older(faults)),
        _ => Err(CheckError::Faults(faults)),
    }
}

/// Triggers that are enabled as `O` or `A` fire in ordinary sessions. The function has the name of the table in which it counts.
const TRIGGER: &str = "
SELECT 1 FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = $1 AND t.tgenabled IN ('O', 'A') AND p.proname = $2 AND position($3 in p.prosrc) > 0";

/// The faults of the relay's own tables, as far as it may read them.
async fn companion_faults(
    client: &Client,
    table: &TableName,
    relations: &Relations,
    missing: &MissingPrivileges,
) -> Result<Vec<Finding>, Error> {
    let mut faults = Vec::new();
    let readable = |relation: &str| relations.oid(relation).is_some() && !missing.prevents_reading(relation);
    for counted in ["{hold}", "{blocked_key}", "{pause}"] {
        let Some(relation) = relations.oid(counted) else { continue };
        let (function, counter) = (table.name_of("{hold_changed}"), table.render("{hold_version}"));
        let params = params![relation => OID, function => TEXT, counter => TEXT];
        if client.query_typed(TRIGGER, &params).await?.is_empty() {
            let place = table.render(counted);
            let problem = "the trigger hold_changed is missing or disabled, or the schema was renamed, so the end of a hold or block \
                           could reorder events";
            let remedy = format!(
                "ALTER TABLE {place} ENABLE TRIGGER hold_changed; or recreate it, and after a rename every function, as shown \
                 by `outbox-relay migrate --print --config FILE`"
            );
            faults.push(HOLD_COUNT.found(place, problem, remedy));
        }
    }
    if readable("{lane}") {
        faults.extend(lane_faults(client, table).await?);
    }
    if readable("{hold_version}") {
        faults.extend(hold_version_fault(client, table).await?);
    }
    Ok(faults)
}

/// Relations and functions that another role has made, and code of the outbox that a superuser with these privileges would run:
/// triggers only if it writes.
async fn foreign_faults(
    client: &Client,
    table: &TableName,
    privileges: &[Privilege],
) -> Result<Vec<Finding>, Error> {
    let writes = |privilege: &Privilege| privilege.on == "{outbox}" && privilege.kind != "SELECT";
    let names = RELATIONS.iter().chain(&["{setting}", "{record_act}"]).map(|name| table.name_of(name));
    relations::foreign(client, table, &names.collect::<Vec<_>>(), privileges.iter().any(writes)).await
}

/// Whether this may be missing only because a migration is pending. A command cannot work without the payload.
fn may_migration_fix(fault: &Finding, has_payload: bool) -> bool {
    [&MIGRATION, &PENDING_INDEX, &SEQUENCE].contains(&fault.code) || *fault.code == COLUMN && has_payload
}

/// A command that inserts no event works while only the sequence is at fault: operators need commands most when something is wrong.
/// The fault becomes part of the warning.
fn without_relay(
    faults: &mut Vec<Finding>,
    difference: Option<String>,
    privileges: &[Privilege],
) -> Option<String> {
    let inserts = |privilege: &Privilege| privilege.on == "{outbox}" && privilege.kind == "INSERT";
    let of_others = |fault: &Finding| *fault.code != SEQUENCE;
    if faults.is_empty() || faults.iter().any(of_others) || privileges.iter().any(inserts) {
        return difference;
    }
    let found = format!("a relay does not start:{}", list(faults));
    faults.clear();
    Some(difference.map_or_else(|| found.clone(), |known| format!("{known}; {found}")))
}

#[derive(Default)]
struct Migrations {
    faults: Vec<Finding>,
    /// Whether only migrations are missing, which may also cause other faults.
    is_older: bool,
    difference: Option<String>,
}

/// Compares the recorded migrations with those of this version.
async fn read_migrations(
    client: &Client,
    table: &TableName,
    outbox_exists: bool,
) -> Result<Migrations, CheckError> {
    let unusable = |problem: &str, remedy: &str| {
        Ok(Migrations { faults: vec![MIGRATION.found(table, problem, remedy)], ..Migrations::default() })
    };
    let states = match series::read_status(client, table, Series::Outbox).await {
        Ok(states) => states,
        Err(MigrateError::Server { source, .. }) => return Err(source.into()),
        Err(other) => return unusable(&other.to_string(), "fix the cause of the error, then try again"),
    };
    let nothing_applied = states.iter().all(|known| known.state == State::Pending);
    if nothing_applied && outbox_exists {
        let remedy = format!(
            "if it is your table of events, run `outbox-relay migrate --adopt {table} --config FILE`. If it has another purpose, \
             choose another name in [outbox] table"
        );
        return unusable("the table exists, but no migration is recorded for it", &remedy);
    }
    if nothing_applied {
        let remedy = format!("check [outbox] table and [postgres] url. For a new outbox, {MIGRATE}");
        return unusable("the outbox does not exist in this database", &remedy);
    }
    let faulty = || states.iter().filter(|known| !known.state.is_compatible());
    let is_older = faulty().next().is_some() && faulty().all(|known| known.state == State::Pending);
    let faults = faulty().filter_map(|known| migration_fault(table, known)).collect();
    Ok(Migrations { faults, is_older, difference: difference(&states) })
}

fn migration_fault(table: &TableName, known: &MigrationState) -> Option<Finding> {
    let (problem, remedy) = match &known.state {
        State::Applied { .. } => return None,
        State::Pending => ("is not applied: the schema is older than this outbox-relay", MIGRATE.to_owned()),
        State::Unknown { min_relay } => (
            "is unknown: the schema is newer than this outbox-relay",
            format!("upgrade this binary to {}", series::to_upgrade_to(*min_relay)),
        ),
        State::ChecksumDiffers { .. } => (
            "was applied with SQL that differs from that of this outbox-relay",
            "compare with `outbox-relay migrate --print --config FILE`, and use the version that applied it"
                .to_owned(),
        ),
    };
    let problem = format!("migration {} ({}) {problem}", known.number, known.name);
    Some(MIGRATION.found(table, problem, remedy))
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

/// The server and the role.
///
/// A role whose transactions are read-only by default is not a fault: the relay requests READ WRITE in each transaction.
struct Server {
    version_num: i32,
    version: String,
    in_recovery: bool,
    database: String,
    role: String,
    is_superuser: bool,
    encoding: String,
}

from_row!(Server: version_num, version, in_recovery, database, role, is_superuser, encoding);

impl Server {
    async fn read(client: &Client) -> Result<Server, Error> {
        Ok(Server::from(&client.query_typed_one(bare(sql!("check/server")), &[]).await?))
    }

    fn is_too_old(&self) -> bool {
        self.version_num < VERSION_NUM_MIN
    }

    fn faults(&self) -> Vec<Finding> {
        let place = format!("database {}", self.database);
        let mut faults = Vec::new();
        if self.is_too_old() {
            let problem = format!("the server is PostgreSQL {}", self.version);
            faults.push(SERVER_TOO_OLD.found(&place, problem, "upgrade it to 14 or later"));
        }
        if self.in_recovery {
            let problem = "the server is a standby and cannot be written to";
            let remedy = "connect to the primary (with several hosts in [postgres] url, add target_session_attrs=read-write)";
            faults.push(STANDBY.found(&place, problem, remedy));
        }
        // Kafka consumers and the client library expect UTF-8.
        if self.encoding != "UTF8" {
            let problem = format!(
                "its encoding is {}, so it may contain text that is not valid UTF-8, and a single such event would make reads fail",
                self.encoding
            );
            let remedy = "create a database with ENCODING 'UTF8' TEMPLATE template0, and move the data there with pg_dump";
            faults.push(ENCODING.found(&place, problem, remedy));
        }
        faults
    }
}

/// Limited, in case the table has many wrong rows.
const READ_LANES: &str = "SELECT lane::integer FROM {lane} ORDER BY lane LIMIT 1000";

async fn lane_faults(client: &Client, table: &TableName) -> Result<Vec<Finding>, Error> {
    let rows = client.query_typed(&table.render(READ_LANES), &[]).await?;
    let lanes: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let valid = (0..LANES as i32).filter(|lane| lanes.contains(lane)).count();
    let (place, highest) = (table.render("{lane}"), LANES - 1);
    let mut faults = Vec::new();
    if valid < LANES {
        faults.push(errors::LANES.found(
            &place,
            format!("the table has only {valid} of the {LANES} lanes, so events of a missing lane would never be sent"),
            format!("INSERT INTO {place} SELECT generate_series(0, {highest}) ON CONFLICT DO NOTHING;"),
        ));
    }
    if lanes.len() > valid {
        faults.push(errors::LANES.found(
            &place,
            format!("rows that are not lanes from 0 to {highest}: {}", lanes.len() - valid),
            format!("DELETE FROM {place} WHERE lane NOT BETWEEN 0 AND {highest};"),
        ));
    }
    Ok(faults)
}

const COUNT_VERSIONS: &str = "SELECT count(*) FROM (SELECT FROM {hold_version} LIMIT 2) AS versions";

async fn hold_version_fault(client: &Client, table: &TableName) -> Result<Option<Finding>, Error> {
    let count: i64 = client.query_typed_one(&table.render(COUNT_VERSIONS), &[]).await?.get(0);
    let found = match count {
        1 => return Ok(None),
        0 => "none",
        _ => "several",
    };
    let place = table.render("{hold_version}");
    let remedy =
        format!("stop all relays, then run: DELETE FROM {place}; INSERT INTO {place} DEFAULT VALUES;");
    let problem = format!("the table must have exactly one row, but has {found}");
    Ok(Some(HOLD_COUNT.found(place, problem, remedy)))
}

/// What a command changes, and the trigger that records it.
const ACTS: [(&str, &str, &str); 5] = [
    ("INSERT", "{pause}", "pause_recorded"),
    ("DELETE", "{pause}", "resume_recorded"),
    ("UPDATE", "{dead_letter}", "requeue_recorded"),
    ("DELETE", "{dead_letter}", "discard_recorded"),
    ("DELETE", "{blocked_key}", "unblock_recorded"),
];

/// A command with these privileges must not act if its act would not be recorded.
async fn act_faults(
    client: &Client,
    table: &TableName,
    privileges: &[Privilege],
) -> Result<Vec<Finding>, Error> {
    let acts = |(kind, on, _): &&(&str, &str, &str)| {
        privileges.iter().any(|privilege| privilege.kind == *kind && privilege.on == *on)
    };
    let wanted: Vec<_> = ACTS.iter().filter(acts).collect();
    let relations: Vec<String> = wanted.iter().map(|(_, on, _)| table.name_of(on)).collect();
    let triggers: Vec<&str> = wanted.iter().map(|(_, _, trigger)| *trigger).collect();
    let replays = privileges.iter().any(|privilege| privilege.on == "{record_act}");
    let [function, of_replays] = ["{act_recorded}", "{record_act}"].map(|name| table.name_of(name));
    let params = params![
        table.schema() => TEXT, relations => TEXT_ARRAY, triggers => TEXT_ARRAY, function => TEXT,
        of_replays => TEXT, replays => BOOL
    ];
    let rows = client.query_typed(bare(sql!("check/unrecorded_acts")), &params).await?;
    let fault = |row: &Row| {
        let (name, trigger): (&str, Option<&str>) = (row.get(0), row.get(1));
        let place = table.sibling(name);
        let (what, enable) = match trigger {
            Some(trigger) => {
                let enable = format!(", or: ALTER TABLE {place} ENABLE TRIGGER {trigger};");
                (format!("the trigger {trigger} is missing or disabled"), enable)
            }
            None => ("the function is missing".to_owned(), String::new()),
        };
        let problem = format!("{what}, so the act would not be recorded");
        RELATION.found(place, problem, format!("{MIGRATE}{enable}"))
    };
    Ok(rows.iter().map(fault).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version_num: i32, in_recovery: bool, encoding: &str) -> Server {
        Server {
            version_num,
            version: "13.20".to_owned(),
            in_recovery,
            database: "shop".to_owned(),
            role: "relay".to_owned(),
            is_superuser: false,
            encoding: encoding.to_owned(),
        }
    }

    #[test]
    fn old_servers_standbys_and_other_encodings_are_faults() {
        let kinds = |server: Server| server.faults().into_iter().map(|fault| fault.code).collect::<Vec<_>>();
        assert_eq!(kinds(server(140_000, false, "UTF8")), [&SERVER_TOO_OLD; 0]);
        assert_eq!(kinds(server(130_020, false, "UTF8")), [&SERVER_TOO_OLD]);
        assert_eq!(kinds(server(180_001, true, "UTF8")), [&STANDBY]);
        assert_eq!(kinds(server(180_001, false, "SQL_ASCII")), [&ENCODING]);
        assert_eq!(kinds(server(180_001, false, "LATIN1")), [&ENCODING]);
    }
}
