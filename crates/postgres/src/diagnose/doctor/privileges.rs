//! Privileges that the role does not need, and those of other roles on the outbox.

use super::{Check, Context, Value, no_params};
use crate::access::grants::relay_grants;
use crate::columns::Column;
use crate::sql::sql;
use crate::table::{MODULE_NAMES, quote_identifier};
use settings::codes;
use settings::doctor::Finding;
use tokio_postgres::Row;

codes! {
    GRANT_MISSING = Error, "grant-missing",
        "the role lacks a required privilege; the relay does not start";
    ROLE_SUPERUSER = Warning, "role-superuser",
        "anyone with the relay's password controls the whole server";
    ROLE_ATTRIBUTES = Warning, "role-attributes",
        "the role may create roles or databases, or read the write-ahead log, which the relay does not need";
    ROLE_OWNER = Warning, "role-owner",
        "the role owns the outbox, so it may change and drop it regardless of grants";
    EVENTS_CHANGEABLE = Warning, "events-changeable",
        "the role may change events of the application, but the relay only needs to set sent_at";
    OTHER_TABLES = Warning, "other-tables",
        "the role may use tables that do not belong to the outbox";
    OUTBOX_PRIVILEGES = Warning, "outbox-privileges",
        "a role has privileges on a table of the outbox that no printed role has: it can run code as roles that use the table, \
         empty it, or change what was recorded";
    SCHEMA_CREATE = Warning, "schema-create",
        "a role that may create tables and functions in this schema can trick other roles into running its code; the relay and \
         its commands set a search path of their own and check their tables, but other programs may not";
}

/// The maximum number of tables that the finding names.
const OTHERS_NAMED: usize = 3;

/// Every table of the outbox.
const OWN: [&str; 11] = [
    "{outbox}",
    "{lane}",
    "{dead_letter}",
    "{hold}",
    "{blocked_key}",
    "{pause}",
    "{act}",
    "{hold_version}",
    "{setting}",
    "{reaper}",
    "{migration}",
];

pub(super) const CHECKS: [Check; 5] = [
    check(sql!("doctor/schema_creators"), |context| vec![schema(context), outbox(context)], creators),
    check(
        sql!("doctor/unneeded_privileges"),
        |context| vec![schema(context), Value::Texts(names(context, &OWN)), records(context)],
        unneeded,
    ),
    check(sql!("doctor/role_attributes"), no_params, attributes),
    Check {
        needs: is_limited,
        ..check(sql!("doctor/role_on_outbox"), |context| vec![context.quoted(), context.sent_at()], on_outbox)
    },
    Check {
        needs: is_limited,
        ..check(
            sql!("doctor/other_tables"),
            |context| {
                vec![schema(context), Value::Texts(own(context)), Value::Number(OTHERS_NAMED as i64 + 1)]
            },
            others,
        )
    },
];

const fn check(
    query: &'static str,
    params: fn(&Context<'_>) -> Vec<Value>,
    judge: fn(&Context<'_>, &[Row]) -> Vec<Finding>,
) -> Check {
    Check::new("rights", "reading the role's privileges", query, params, judge)
}

/// The other findings of a superuser would follow from that one.
fn is_limited(context: &Context<'_>) -> bool {
    !context.role.is_superuser
}

fn schema(context: &Context<'_>) -> Value {
    Value::Text(context.table.schema().to_owned())
}

fn outbox(context: &Context<'_>) -> Value {
    Value::Text(context.table.table().to_owned())
}

fn records(context: &Context<'_>) -> Value {
    Value::Texts(names(context, &["{act}", "{migration}"]))
}

/// The tables of the outbox, and the names of the modules.
fn own(context: &Context<'_>) -> Vec<String> {
    let mut own = names(context, &OWN);
    own.extend(MODULE_NAMES.split(' ').map(str::to_owned));
    own
}

fn names(context: &Context<'_>, relations: &[&str]) -> Vec<String> {
    relations.iter().map(|relation| context.table.name_of(relation)).collect()
}

fn creators(_: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let finding = |row: &Row| {
        let (schema, role, owns): (&str, &str, bool) = (row.get(0), row.get(1), row.get(2));
        let (problem, remedy) = if owns {
            (
                format!("{role} owns it, or the database, and may replace the tables of the outbox"),
                format!(
                    "ALTER SCHEMA {schema} OWNER TO CURRENT_USER; or move the outbox to a schema of its own, unless {role} \
                     should have the rights of the outbox's owner"
                ),
            )
        } else {
            (
                format!("{role} may create objects in it"),
                format!("REVOKE CREATE ON SCHEMA {schema} FROM {role};"),
            )
        };
        SCHEMA_CREATE.found(format!("schema {schema}"), problem, remedy)
    };
    rows.iter().map(finding).collect()
}

fn unneeded(_: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let finding = |row: &Row| {
        let (role, privileges, tables): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let remedy = format!(
            "REVOKE ALL ON {tables} FROM {role}; then run the statements of `outbox-relay migrate --print-roles` again. \
             ALTER DEFAULT PRIVILEGES may have granted them"
        );
        OUTBOX_PRIVILEGES.found(
            format!("role {role}"),
            format!("{role} has privileges on {privileges}"),
            remedy,
        )
    };
    rows.iter().map(finding).collect()
}

fn attributes(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let place = format!("role {}", context.role.name);
    if context.role.is_superuser {
        let remedy = "connect as the relay's own role. If there is none, create it with the SQL from `outbox-relay migrate \
                      --print-roles --config FILE`";
        return vec![ROLE_SUPERUSER.found(place, "the role is a superuser", remedy)];
    }
    let attributes: &str = rows.first().map_or("", |row| row.get(0));
    if attributes.is_empty() {
        return Vec::new();
    }
    let has = attributes.replace("NO", "").replace(' ', ", ");
    let remedy = format!("ALTER ROLE {} {attributes};", quote_identifier(&context.role.name));
    vec![ROLE_ATTRIBUTES.found(place, format!("the role has {has}"), remedy)]
}

fn on_outbox(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let Some(row) = rows.first() else { return Vec::new() };
    let (owns, changeable): (bool, Option<&str>) = (row.get(0), row.get(1));
    let (name, role, outbox) =
        (&context.role.name, quote_identifier(&context.role.name), context.table.quoted());
    if owns {
        let grants = relay_grants(context.table, name).replace('\n', " ");
        let remedy = format!("ALTER TABLE {outbox} OWNER TO CURRENT_USER; {}", grants.trim_end());
        let problem = format!("role {name} owns the outbox, or has the privileges of its owner");
        return vec![ROLE_OWNER.found(context.outbox(), problem, remedy)];
    }
    let Some(columns) = changeable else { return Vec::new() };
    let sent_at = context.table.column(Column::SentAt);
    let remedy =
        format!("REVOKE UPDATE ON {outbox} FROM {role}; GRANT UPDATE ({sent_at}) ON {outbox} TO {role};");
    let problem = format!("role {name} may change {columns}");
    vec![EVENTS_CHANGEABLE.found(context.outbox(), problem, remedy)]
}

fn others(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    if rows.is_empty() {
        return Vec::new();
    }
    let role = quote_identifier(&context.role.name);
    let named = &rows[..rows.len().min(OTHERS_NAMED)];
    let tables: Vec<&str> = named.iter().map(|row| row.get(0)).collect();
    let mut remedies: Vec<String> = Vec::new();
    for row in named {
        let (table, by): (&str, Option<&str>) = (row.get(0), row.get(1));
        let remedy = match by {
            Some("PUBLIC") => format!("REVOKE ALL ON {table} FROM PUBLIC;"),
            Some(group) => format!("REVOKE {group} FROM {role};"),
            None => format!("REVOKE ALL ON {table} FROM {role};"),
        };
        if !remedies.contains(&remedy) {
            remedies.push(remedy);
        }
    }
    let more = if rows.len() > named.len() { " and more" } else { "" };
    let problem = format!("role {} may use {}{more}", context.role.name, tables.join(", "));
    vec![OTHER_TABLES.found(format!("role {}", context.role.name), problem, remedies.join(" "))]
}
