//! Checks that the relations exist, are ordinary tables, show all rows, and that the role has the privileges it needs.

use crate::access::grants::{CHECK_PRIVILEGES, Privilege, RELAY_PRIVILEGES, schema_grant};
use crate::schema::check::MIGRATE;
use crate::schema::errors::{SchemaFault, SchemaFaultKind};
use crate::sql::{bare, sql};
use crate::table::{TableName, quote_identifier};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// The tables that the relay needs, as placeholders. It also works without its recorded settings.
const RELATIONS: [&str; 10] = [
    "{outbox}",
    "{lane}",
    "{dead_letter}",
    "{hold}",
    "{blocked_key}",
    "{pause}",
    "{act}",
    "{hold_version}",
    "{reaper}",
    "{migration}",
];

/// What a relay and the commands use, except for the outbox, which belongs to the application, with its triggers.
pub(super) fn own_names(table: &TableName) -> Vec<String> {
    let tables = RELATIONS.iter().filter(|relation| **relation != "{outbox}");
    tables.chain(&["{setting}", "{record_act}"]).map(|name| table.name_of(name)).collect()
}

/// The system catalogs need no privileges. A cast to regclass would need USAGE on the schema.
const READ: &str = "
SELECT c.relname::text, c.oid, c.relkind::text, c.relpersistence::text, row_security_active(c.oid)
FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE s.nspname = $1 AND c.relname = ANY ($2)";

struct Relation {
    placeholder: &'static str,
    oid: u32,
    kind: String,
    persistence: String,
    hides_rows: bool,
}

pub(super) struct Relations(Vec<Relation>);

pub(super) async fn read(client: &Client, table: &TableName) -> Result<Relations, tokio_postgres::Error> {
    let names: Vec<String> = RELATIONS.iter().map(|relation| table.name_of(relation)).collect();
    let rows = client.query_typed(READ, &[(&table.schema(), Type::TEXT), (&names, Type::TEXT_ARRAY)]).await?;
    let mut found = Vec::new();
    for row in rows {
        let name: String = row.get(0);
        if let Some(at) = names.iter().position(|wanted| *wanted == name) {
            found.push(Relation {
                placeholder: RELATIONS[at],
                oid: row.get(1),
                kind: row.get(2),
                persistence: row.get(3),
                hides_rows: row.get(4),
            });
        }
    }
    Ok(Relations(found))
}

impl Relations {
    /// The OID of an ordinary table.
    pub(super) fn oid(&self, placeholder: &str) -> Option<u32> {
        self.0
            .iter()
            .find(|relation| relation.placeholder == placeholder && relation.kind == "r")
            .map(|relation| relation.oid)
    }

    pub(super) fn has(&self, placeholder: &str) -> bool {
        self.oid(placeholder).is_some()
    }

    /// With `complete`, every migration is recorded, so a missing table was dropped.
    pub(super) fn faults(&self, table: &TableName, complete: bool) -> Vec<SchemaFault> {
        let mut faults = Vec::new();
        for placeholder in RELATIONS {
            let name = table.render(placeholder);
            match self.0.iter().find(|relation| relation.placeholder == placeholder) {
                Some(relation) => faults.extend(relation.faults(&name)),
                None if complete => faults.push(SchemaFault::new(
                    SchemaFaultKind::Relation,
                    name,
                    "the table is missing, though its migration is recorded",
                    "recreate it with its statements from `outbox-relay migrate --print --config FILE`",
                )),
                None => {}
            }
        }
        faults
    }

    /// A fault for the outbox and each table with these privileges that a pending migration has yet to create.
    pub(super) fn missing(&self, table: &TableName, privileges: &[Privilege]) -> Vec<SchemaFault> {
        let is_needed = |relation: &&str| {
            *relation == "{outbox}" || privileges.iter().any(|needed| needed.on == *relation)
        };
        let is_found = |relation: &&str| self.0.iter().any(|found| found.placeholder == *relation);
        let missing = RELATIONS.into_iter().filter(|relation| is_needed(relation) && !is_found(relation));
        missing
            .map(|relation| {
                let problem = "the table is missing, because a migration is not applied";
                SchemaFault::new(SchemaFaultKind::Relation, table.render(relation), problem, MIGRATE)
            })
            .collect()
    }
}

/// The faults of the outbox itself; `None` if there is no relation of its name.
pub(crate) async fn outbox_faults(
    client: &Client,
    table: &TableName,
) -> Result<Option<(u32, Vec<SchemaFault>)>, tokio_postgres::Error> {
    let Relations(found) = read(client, table).await?;
    let outbox = found.iter().find(|relation| relation.placeholder == "{outbox}");
    Ok(outbox.map(|outbox| (outbox.oid, outbox.faults(&table.quoted()))))
}

impl Relation {
    fn faults(&self, name: &str) -> Vec<SchemaFault> {
        let mut faults = Vec::new();
        if self.kind != "r" {
            let what = match self.kind.as_str() {
                "p" => "a partitioned table",
                "v" | "m" => "a view",
                "f" => "a foreign table",
                _ => "not a table",
            };
            let problem = format!("it is {what}, but must be an ordinary table");
            let remedy = "create the outbox with `outbox-relay migrate`, if necessary with another name in [outbox] table";
            faults.push(SchemaFault::new(SchemaFaultKind::Relation, name, problem, remedy));
        } else if self.persistence != "p" {
            faults.push(SchemaFault::new(
                SchemaFaultKind::Relation,
                name,
                "it is an unlogged table: a server crash would empty it",
                format!("ALTER TABLE {name} SET LOGGED;"),
            ));
        }
        if self.hides_rows {
            faults.push(SchemaFault::new(
                SchemaFaultKind::RowSecurity,
                name,
                "row-level security can hide rows from the relay's role, and hidden events are never sent",
                format!("ALTER TABLE {name} DISABLE ROW LEVEL SECURITY; or give the role BYPASSRLS"),
            ));
        }
        faults
    }
}

const MISSING_USAGE: &str = "
SELECT 1 FROM pg_namespace WHERE nspname = $1 AND NOT has_schema_privilege(oid, 'USAGE')";

/// The group of the operators, if the connected role is that of a relay.
const OPERATORS: &str = "SELECT rolname::text FROM pg_roles WHERE rolname = current_user || '_operator'";

pub(super) async fn operators(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let rows = client.query_typed(OPERATORS, &[]).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// The relay's role, if the connected one belongs to its operators.
pub(crate) const RELAY: &str = sql!("check/relay_role");

pub(super) async fn relay(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let rows = client.query_typed(RELAY, &[]).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// The role to connect as instead, which has what the connected one must not have.
pub(super) enum Other {
    /// The group of the operators, because the role is the relay's.
    Operators(String),
    /// The relay's role, because the connected one is an operator's.
    Relay(String),
}

pub(super) struct MissingPrivileges {
    usage: bool,
    privileges: Vec<Privilege>,
}

pub(super) async fn missing_privileges(
    client: &Client,
    table: &TableName,
    wanted: &[Privilege],
) -> Result<MissingPrivileges, tokio_postgres::Error> {
    let schema = table.schema();
    let usage = !client.query_typed(MISSING_USAGE, &[(&schema, Type::TEXT)]).await?.is_empty();
    let relations: Vec<String> = wanted.iter().map(|privilege| table.name_of(privilege.on)).collect();
    let kinds: Vec<&str> = wanted.iter().map(|privilege| privilege.kind).collect();
    let columns: Vec<String> =
        wanted.iter().map(|privilege| privilege.column_names(table).join("\n")).collect();
    let rows = client
        .query_typed(
            bare(sql!("check/missing_privileges")),
            &[
                (&schema, Type::TEXT),
                (&relations, Type::TEXT_ARRAY),
                (&kinds, Type::TEXT_ARRAY),
                (&columns, Type::TEXT_ARRAY),
            ],
        )
        .await?;
    let at = |row: &tokio_postgres::Row| usize::try_from(row.get::<_, i64>(0)).ok();
    let privileges = rows.iter().filter_map(at).filter_map(|at| wanted.get(at)).copied().collect();
    Ok(MissingPrivileges { usage, privileges })
}

impl MissingPrivileges {
    pub(super) fn prevents_reading(&self, placeholder: &str) -> bool {
        let lacking = |privilege: &Privilege| privilege.on == placeholder && privilege.kind == "SELECT";
        self.usage || self.privileges.iter().any(lacking)
    }

    /// The relay's role never gets the privileges of the operators, nor an operator's role those of the relay.
    pub(super) fn faults(&self, table: &TableName, role: &str, other: Option<&Other>) -> Vec<SchemaFault> {
        let mut faults = Vec::new();
        if self.usage {
            let problem = format!("role {role} lacks USAGE on the schema");
            faults.push(SchemaFault::new(SchemaFaultKind::Grant, table, problem, schema_grant(table, role)));
        }
        let is_own = |privilege: &Privilege| match other {
            None => true,
            Some(Other::Operators(_)) => {
                RELAY_PRIVILEGES.contains(privilege) || CHECK_PRIVILEGES.contains(privilege)
            }
            Some(Other::Relay(_)) => CHECK_PRIVILEGES.contains(privilege),
        };
        let (own, others): (Vec<Privilege>, _) = self.privileges.iter().copied().partition(is_own);
        if let (Some(other), false) = (other, others.is_empty()) {
            faults.push(fault_of(table, role, &others, other));
        }
        for privilege in own {
            let of_columns = match &privilege.column_names(table)[..] {
                [] => String::new(),
                [column] => format!(" on column {column}"),
                columns => format!(" on at least one of the columns {}", columns.join(", ")),
            };
            let problem = format!("role {role} lacks {}{of_columns}", privilege.kind);
            let place = table.render(privilege.on);
            faults.push(SchemaFault::new(
                SchemaFaultKind::Grant,
                place,
                problem,
                privilege.grant(table, role),
            ));
        }
        faults
    }
}

fn fault_of(table: &TableName, role: &str, lacking: &[Privilege], other: &Other) -> SchemaFault {
    let lacks = |privilege: &Privilege| format!("{} on {}", privilege.kind, table.render(privilege.on));
    let lacking = lacking.iter().map(lacks).collect::<Vec<_>>().join(", ");
    let (problem, remedy) = match other {
        Other::Operators(group) => (
            format!("role {role} is the relay's and lacks {lacking}, which only operators have"),
            format!(
                "run the command with your own role, for example alice: GRANT {} TO alice; then set \
                 OUTBOX_RELAY__POSTGRES__URL=postgres://alice@HOST/DATABASE",
                quote_identifier(group)
            ),
        ),
        Other::Relay(relay) => (
            format!("role {role} is an operator's and lacks {lacking}, which only the relay has"),
            format!("run this command with the relay's role, {relay}"),
        ),
    };
    SchemaFault::new(SchemaFaultKind::Grant, table, problem, remedy)
}
