//! The relations of the outbox: whether they exist, are ours, are ordinary tables and show all rows, and whether the role has the
//! privileges that it needs.
//!
//! A role that may create tables in the schema could have made one with the name of one of ours, so that a view, a trigger, a
//! rule or a default runs code as the role that uses it. So this is checked before the first use.

use crate::access::grants::{CHECK_PRIVILEGES, Privilege, RELAY_PRIVILEGES, schema_grant};
use crate::connection::exec::ShortTransaction;
use crate::schema::errors::{GRANT_MISSING, MIGRATE, RELATION, ROW_SECURITY};
use crate::schema::series::MIGRATIONS;
use crate::sql::{bare, sql};
use crate::table::{TableName, quote_identifier};
use relay::failure::{FaultKind, PostgresFault};
use settings::doctor::Finding;
use std::collections::BTreeMap;
use tokio_postgres::{Client, Error, GenericClient, Row};

/// The tables that the relay needs, as placeholders. It also works without its recorded settings.
pub(crate) const RELATIONS: [&str; 10] = [
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

/// The system catalogs need no privileges. A cast to regclass would need USAGE on the schema.
const READ: &str = "
SELECT c.oid, c.relkind::text, c.relpersistence::text, row_security_active(c.oid), c.relname::text
FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE s.nspname = $1 AND c.relname = ANY ($2)";

struct Relation {
    oid: u32,
    kind: String,
    persistence: String,
    hides_rows: bool,
}

from_row!(Relation: oid, kind, persistence, hides_rows);

/// Those that exist, by placeholder.
pub(super) struct Relations(BTreeMap<&'static str, Relation>);

impl Relations {
    pub(super) async fn read(client: &Client, table: &TableName) -> Result<Relations, Error> {
        let names: Vec<String> = RELATIONS.iter().map(|relation| table.name_of(relation)).collect();
        let params = params![table.schema() => TEXT, names => TEXT_ARRAY];
        let rows = client.query_typed(READ, &params).await?;
        let placeholder =
            |row: &Row| RELATIONS.into_iter().find(|name| table.name_of(name) == row.get::<_, &str>(4));
        Ok(Relations(rows.iter().filter_map(|row| Some((placeholder(row)?, Relation::from(row)))).collect()))
    }

    /// The OID of an ordinary table.
    pub(super) fn oid(&self, placeholder: &str) -> Option<u32> {
        self.0.get(placeholder).filter(|relation| relation.kind == "r").map(|relation| relation.oid)
    }

    /// With `complete`, every migration is recorded, so a missing table was dropped.
    pub(super) fn faults(&self, table: &TableName, complete: bool) -> Vec<Finding> {
        let faults = |placeholder: &'static str| match self.0.get(placeholder) {
            Some(relation) => relation.faults(&table.render(placeholder)),
            None if complete => vec![RELATION.found(
                table.render(placeholder),
                "the table is missing, though its migration is recorded",
                "recreate it with its statements from `outbox-relay migrate --print --config FILE`",
            )],
            None => Vec::new(),
        };
        RELATIONS.into_iter().flat_map(faults).collect()
    }

    /// A fault for the outbox and each table with these privileges that a pending migration has yet to create.
    pub(super) fn missing(&self, table: &TableName, privileges: &[Privilege]) -> Vec<Finding> {
        let is_needed =
            |relation: &str| relation == "{outbox}" || privileges.iter().any(|needed| needed.on == relation);
        let missing = RELATIONS.into_iter().filter(|name| is_needed(name) && !self.0.contains_key(name));
        let problem = "the table is missing, because a migration is not applied";
        missing.map(|relation| RELATION.found(table.render(relation), problem, MIGRATE)).collect()
    }

    /// The OID of the relation with the outbox's name, and its faults; `None` if there is none.
    pub(super) fn outbox(&self, table: &TableName) -> Option<(u32, Vec<Finding>)> {
        self.0.get("{outbox}").map(|outbox| (outbox.oid, outbox.faults(&table.quoted())))
    }
}

impl Relation {
    fn faults(&self, name: &str) -> Vec<Finding> {
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
            faults.push(RELATION.found(name, problem, remedy));
        } else if self.persistence != "p" {
            let problem = "it is an unlogged table: a server crash would empty it";
            faults.push(RELATION.found(name, problem, format!("ALTER TABLE {name} SET LOGGED;")));
        }
        if self.hides_rows {
            faults.push(ROW_SECURITY.found(
                name,
                "row-level security can hide rows from the relay's role, and hidden events are never sent",
                format!("ALTER TABLE {name} DISABLE ROW LEVEL SECURITY; or give the role BYPASSRLS"),
            ));
        }
        faults
    }
}

/// Which of these names belong to a relation or function that is not ours, or to an outbox whose code would run as a superuser.
/// `writes` tells whether rows of the outbox are written. The places are their quoted names. Call it in a transaction.
pub(super) async fn foreign(
    client: &impl GenericClient,
    table: &TableName,
    names: &[String],
    writes: bool,
) -> Result<Vec<Finding>, Error> {
    let (triggers, bodies) = triggers(table);
    let params = params![
        table.schema() => TEXT, table.table() => TEXT, names => TEXT_ARRAY, triggers => TEXT_ARRAY,
        bodies => TEXT_ARRAY, writes => BOOL
    ];
    let rows = client.query_typed(bare(FOREIGN), &params).await?;
    Ok(rows.iter().filter_map(|row| judge_owner(table, row)).collect())
}

/// A fault if one of these names belongs to a relation or function that is not ours.
pub(crate) async fn require_own(
    transaction: &ShortTransaction,
    doing: &'static str,
    table: &TableName,
    names: &[String],
) -> Result<(), PostgresFault> {
    let (triggers, bodies) = triggers(table);
    // As in `foreign`, for rows that are only read.
    let params = params![
        table.schema() => TEXT, table.table() => TEXT, names => TEXT_ARRAY, triggers => TEXT_ARRAY,
        bodies => TEXT_ARRAY, false => BOOL
    ];
    let rows = transaction.query(doing, bare(FOREIGN), &params).await?;
    match rows.iter().find_map(|row| judge_owner(table, row)) {
        Some(Finding { place, problem, remedy, .. }) => {
            let message = format!("{place}: {problem}, so it was not used. Fix: {remedy}");
            Err(PostgresFault { kind: FaultKind::Refused, doing, message })
        }
        None => Ok(()),
    }
}

const FOREIGN: &str = sql!("check/foreign");

/// The names of our trigger functions, and their bodies in the migrations.
fn triggers(table: &TableName) -> (Vec<String>, Vec<String>) {
    let functions = ["{hold_changed}", "{act_recorded}"];
    let found = functions.iter().flat_map(|function| {
        let head = format!("FUNCTION {function}() RETURNS trigger");
        let bodies = MIGRATIONS.iter().filter_map(move |migration| {
            let (_, after) = migration.template.split_once(head.as_str())?;
            after.split("$$").nth(1)
        });
        bodies.map(|body| (table.name_of(function), table.render(body)))
    });
    found.unzip()
}

fn judge_owner(table: &TableName, row: &Row) -> Option<Finding> {
    let (relation, owner, kind): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
    let (is_trusted, has_rules, has_children): (bool, bool, bool) = (row.get(3), row.get(4), row.get(5));
    let code = || row.get::<_, Option<&str>>(6);
    let (name, role) = (table.sibling(relation), quote_identifier(owner));
    let what = match kind {
        "r" | "p" => "table",
        "v" | "m" => "view",
        "f" => "foreign table",
        "function" => "function",
        _ => "relation",
    };
    if let Some(key) = row.get::<_, Option<&str>>(7) {
        let (place, by): (&str, &str) = (row.get(8), row.get(9));
        let (key, role) = (quote_identifier(key), quote_identifier(by));
        let problem = format!(
            "the foreign key {key} of the table {place} of the role {by} references it, so a deleted row may run code of {by}"
        );
        let remedy = format!(
            "ALTER TABLE {place} DROP CONSTRAINT {key}; and REVOKE REFERENCES ON {name} FROM {role}; If you trust {by}, connect as \
             a role that is no superuser, or as the owner of that table"
        );
        return Some(RELATION.found(name, problem, remedy));
    }
    let uses = |code: &str| {
        format!(
            "a trigger, default, constraint, index, statistics object, policy or column of this table of the role {owner} \
             uses {code}, which another role can change"
        )
    };
    if relation == table.table() {
        let code = code()?;
        let remedy = format!(
            "connect as a role that is no superuser, such as one of those that `outbox-relay migrate --print-roles` prints; \
             or drop what uses {code}"
        );
        return Some(RELATION.found(name, uses(code) + ", and it would run as a superuser", remedy));
    }
    let (problem, remedy) = if !matches!(what, "table" | "function") {
        (format!("it is a {what} of the role {owner}, but must be an ordinary table"), String::new())
    } else if !is_trusted {
        let yours = format!("ALTER {} {name} OWNER TO CURRENT_USER;", what.to_uppercase());
        let problem = format!(
            "it is a {what} of the role {owner}, which is neither a superuser nor the owner of the outbox"
        );
        (problem, format!("if you trust {owner}, connect as {role}, or run: {yours} Otherwise, "))
    } else if has_rules || has_children && kind == "r" {
        let what = if has_rules { "rules" } else { "child tables" };
        (format!("the table of the role {owner} has {what}"), format!("drop the {what}, or "))
    } else {
        let code = code()?;
        (uses(code), format!("drop what uses {code}, or "))
    };
    Some(RELATION.found(name, problem, format!("{remedy}find out who created it, and drop or rename it")))
}

/// The group of the operators, if the connected role is that of a relay.
const OPERATORS: &str = "SELECT rolname::text FROM pg_roles WHERE rolname = current_user || '_operator'";

/// The role to connect as instead, which has what the connected one must not have: for a command, the group of the operators if
/// the role is the relay's, because the configuration names that; for a relay, its role if the connected one is an operator's.
pub(super) async fn other_role(client: &Client, is_command: bool) -> Result<Option<String>, Error> {
    let sql = if is_command { OPERATORS } else { bare(sql!("check/relay_role")) };
    Ok(client.query_typed(sql, &[]).await?.first().map(|row| row.get(0)))
}

pub(super) struct MissingPrivileges {
    usage: bool,
    privileges: Vec<Privilege>,
}

impl MissingPrivileges {
    pub(super) async fn read(
        client: &Client,
        table: &TableName,
        wanted: &[Privilege],
    ) -> Result<MissingPrivileges, Error> {
        let relations: Vec<String> = wanted.iter().map(|privilege| table.name_of(privilege.on)).collect();
        let kinds: Vec<&str> = wanted.iter().map(|privilege| privilege.kind).collect();
        let columns = wanted.iter().map(|privilege| privilege.column_names(table).join("\n"));
        let columns: Vec<String> = columns.collect();
        let params = params![
            table.schema() => TEXT, relations => TEXT_ARRAY, kinds => TEXT_ARRAY, columns => TEXT_ARRAY
        ];
        let rows = client.query_typed(bare(sql!("check/missing_privileges")), &params).await?;
        let at: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let privilege = |at: &i64| wanted.get(usize::try_from(*at).ok()?).copied();
        Ok(MissingPrivileges {
            usage: at.contains(&-1),
            privileges: at.iter().filter_map(privilege).collect(),
        })
    }

    pub(super) fn prevents_reading(&self, placeholder: &str) -> bool {
        let lacking = |privilege: &Privilege| privilege.on == placeholder && privilege.kind == "SELECT";
        self.usage || self.privileges.iter().any(lacking)
    }

    /// `other` is the [`other_role`]. The relay's role never gets the privileges of the operators, nor an operator's role those
    /// of the relay.
    pub(super) fn faults(
        &self,
        table: &TableName,
        role: &str,
        other: Option<&str>,
        is_command: bool,
    ) -> Vec<Finding> {
        let mut faults = Vec::new();
        if self.usage {
            let problem = format!("role {role} lacks USAGE on the schema");
            faults.push(GRANT_MISSING.found(table, problem, schema_grant(table, role)));
        }
        let is_own = |privilege: &Privilege| {
            other.is_none()
                || CHECK_PRIVILEGES.contains(privilege)
                || is_command && RELAY_PRIVILEGES.contains(privilege)
        };
        let (own, others): (Vec<Privilege>, _) = self.privileges.iter().copied().partition(is_own);
        if let (Some(other), false) = (other, others.is_empty()) {
            faults.push(fault_of(table, role, &others, other, is_command));
        }
        for privilege in own {
            let of_columns = match &privilege.column_names(table)[..] {
                [] => String::new(),
                [column] => format!(" on column {column}"),
                columns => format!(" on at least one of the columns {}", columns.join(", ")),
            };
            let problem = format!("role {role} lacks {}{of_columns}", privilege.kind);
            faults.push(GRANT_MISSING.found(
                table.render(privilege.on),
                problem,
                privilege.grant(table, role),
            ));
        }
        faults
    }
}

fn fault_of(table: &TableName, role: &str, lacking: &[Privilege], other: &str, is_command: bool) -> Finding {
    let lacks = |privilege: &Privilege| format!("{} on {}", privilege.kind, table.render(privilege.on));
    let lacking = lacking.iter().map(lacks).collect::<Vec<_>>().join(", ");
    let (problem, remedy) = match is_command {
        true => (
            format!("role {role} is the relay's and lacks {lacking}, which only operators have"),
            format!(
                "run the command with your own role, for example alice: GRANT {} TO alice; then set \
                 OUTBOX_RELAY__POSTGRES__URL=postgres://alice@HOST/DATABASE",
                quote_identifier(other)
            ),
        ),
        false => (
            format!("role {role} is an operator's and lacks {lacking}, which only the relay has"),
            format!("run this command with the relay's role, {other}"),
        ),
    };
    GRANT_MISSING.found(table, problem, remedy)
}
