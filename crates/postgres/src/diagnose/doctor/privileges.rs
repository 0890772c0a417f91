//! Finds privileges of the role that the relay does not need.

use super::Context;
use crate::access::grants::relay_grants;
use crate::connection::transaction::Params;
use crate::table::{Column, MODULE_NAMES, quote_identifier};
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::{
    EVENTS_CHANGEABLE, OTHER_TABLES, OUTBOX_PRIVILEGES, ROLE_ATTRIBUTES, ROLE_OWNER, ROLE_SUPERUSER,
    SCHEMA_CREATE,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

const DOING: &str = "reading the role's privileges";
/// The maximum number of tables that the finding names.
const OTHERS_NAMED: i64 = 3;

/// Attributes that the relay does not need. It may need BYPASSRLS.
const ATTRIBUTES: &str = "
SELECT concat_ws(' ', CASE WHEN rolcreaterole THEN 'NOCREATEROLE' END, CASE WHEN rolcreatedb THEN 'NOCREATEDB' END,
                 CASE WHEN rolreplication THEN 'NOREPLICATION' END)
FROM pg_roles
WHERE rolname = current_user";

/// Whether the role has the privileges of the owner of the outbox, and which columns of an event it may update.
const ON_OUTBOX: &str = "
SELECT pg_has_role(c.relowner, 'USAGE'),
       (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum)
        FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> $2::text
          AND has_column_privilege(c.oid, a.attnum, 'UPDATE'))
FROM pg_class AS c
WHERE c.oid = $1::text::regclass";

/// Other tables that the role may use, and how: through PUBLIC, or through a role of which it is a member, else NULL. Tables
/// of extensions are skipped, because they are meant to be public.
const OTHERS: &str = "
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       CASE WHEN EXISTS (SELECT FROM aclexplode(c.relacl) AS a WHERE a.grantee = 0) THEN 'PUBLIC'
            ELSE (SELECT quote_ident(r.rolname) FROM pg_auth_members AS m JOIN pg_roles AS r ON r.oid = m.roleid
                  WHERE m.member = (SELECT oid FROM pg_roles WHERE rolname = current_user)
                    AND has_table_privilege(m.roleid, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
                  LIMIT 1) END
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
  AND NOT (n.nspname = $1::text AND c.relname = ANY ($2::text[]))
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
  AND has_schema_privilege(n.oid, 'USAGE')
  AND (has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
       OR has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE'))
ORDER BY 1
LIMIT $3::bigint";

/// Who may create objects in the schema of the outbox or in one of the role's search path, except for superusers and the owner of
/// the outbox. The owner of the schema of the outbox may also drop and replace its tables. From PostgreSQL 15, `public` belongs to
/// the owner of the database.
const CREATORS: &str = "
SELECT DISTINCT quote_ident(n.nspname), CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, false
FROM pg_namespace AS n
CROSS JOIN LATERAL aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
LEFT JOIN pg_roles AS r ON r.oid = a.grantee
WHERE (n.nspname = $1::text OR n.nspname IN (
          SELECT CASE btrim(part) WHEN '\"$user\"' THEN current_user::text ELSE btrim(part, ' \"') END
          FROM pg_settings AS s CROSS JOIN LATERAL unnest(string_to_array(s.reset_val, ',')) AS part
          WHERE s.name = 'search_path'))
  AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND r.rolsuper IS NOT TRUE
  AND NOT EXISTS (SELECT FROM pg_class AS o
                  WHERE o.relnamespace = n.oid AND n.nspname = $1::text AND o.relname = $2::text AND o.relowner = a.grantee)
UNION
SELECT quote_ident(n.nspname), quote_ident(r.rolname), true
FROM pg_namespace AS n
JOIN pg_class AS o ON o.relnamespace = n.oid AND o.relname = $2::text
JOIN pg_database AS d ON d.datname = current_database()
JOIN pg_roles AS r ON r.oid = CASE WHEN n.nspowner = to_regrole('pg_database_owner') THEN d.datdba ELSE n.nspowner END
WHERE n.nspname = $1::text AND NOT r.rolsuper AND NOT pg_has_role(r.oid, o.relowner, 'MEMBER')
ORDER BY 1, 2";

/// Privileges on tables of the outbox that no role needs, for example by default privileges of the owner: those that let a role run
/// code or empty a table, and changes of what migrations and operators have done.
const UNNEEDED: &str = "
SELECT coalesce(quote_ident(r.rolname), 'PUBLIC'),
       string_agg(DISTINCT quote_ident(c.relname) || ' (' || a.privilege_type || ')', ', '),
       string_agg(DISTINCT quote_ident($1::text) || '.' || quote_ident(c.relname), ', ')
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = $1::text
CROSS JOIN LATERAL aclexplode(c.relacl) AS a
LEFT JOIN pg_roles AS r ON r.oid = a.grantee
WHERE c.relname = ANY ($2::text[]) AND a.grantee <> c.relowner AND r.rolsuper IS NOT TRUE
  AND (a.privilege_type IN ('TRUNCATE', 'REFERENCES', 'TRIGGER') OR a.grantee = 0
       OR c.relname = ANY ($3::text[]) AND a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE'))
GROUP BY 1
ORDER BY 1
LIMIT 10";

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

pub(super) async fn findings(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let (name, role) = (&context.role.name, quote_identifier(&context.role.name));
    let place = format!("role {name}");
    let mut findings = on_schemas(context).await?;
    findings.extend(of_others(context).await?);
    if context.role.is_superuser {
        // All other findings of the role would follow from this one.
        let remedy = "connect as the relay's own role. If there is none, create it with the SQL from `outbox-relay migrate \
                      --print-roles --config FILE`";
        findings.push(ROLE_SUPERUSER.found(place, "the role is a superuser", remedy));
        return Ok(findings);
    }
    let rows = context.rows(DOING, ATTRIBUTES, &[]).await?;
    let attributes: String = rows.first().map_or_else(String::new, |row| row.get(0));
    if !attributes.is_empty() {
        let has = attributes.replace("NO", "").replace(' ', ", ");
        let remedy = format!("ALTER ROLE {role} {attributes};");
        findings.push(ROLE_ATTRIBUTES.found(&place, format!("the role has {has}"), remedy));
    }
    findings.extend(on_outbox(context).await?);
    findings.extend(on_others(context).await?);
    Ok(findings)
}

async fn on_schemas(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let (schema, outbox) = (context.table.schema(), context.table.table());
    let rows = context.rows(DOING, CREATORS, &[(&schema, Type::TEXT), (&outbox, Type::TEXT)]).await?;
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
    Ok(rows.iter().map(finding).collect())
}

async fn of_others(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let own: Vec<String> = OWN.iter().map(|relation| context.table.name_of(relation)).collect();
    let records = ["{act}", "{migration}"].map(|relation| context.table.name_of(relation)).to_vec();
    let schema = context.table.schema();
    let params: Params<'_> = &[(&schema, Type::TEXT), (&own, Type::TEXT_ARRAY), (&records, Type::TEXT_ARRAY)];
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
    Ok(context.rows(DOING, UNNEEDED, params).await?.iter().map(finding).collect())
}

async fn on_outbox(context: &Context<'_>) -> Result<Option<Finding>, PostgresFault> {
    let (table, sent_at) = (context.table.quoted(), context.table.columns().name(Column::SentAt));
    let rows = context.rows(DOING, ON_OUTBOX, &[(&table, Type::TEXT), (&sent_at, Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (owns, changeable): (bool, Option<&str>) = (row.get(0), row.get(1));
    let (name, role, outbox) =
        (&context.role.name, quote_identifier(&context.role.name), context.table.quoted());
    if owns {
        let grants = relay_grants(context.table, name).replace('\n', " ");
        let remedy = format!("ALTER TABLE {outbox} OWNER TO CURRENT_USER; {}", grants.trim_end());
        let problem = format!("role {name} owns the outbox, or has the privileges of its owner");
        return Ok(Some(ROLE_OWNER.found(context.table.to_string(), problem, remedy)));
    }
    let Some(columns) = changeable else { return Ok(None) };
    let sent_at = context.table.column(Column::SentAt);
    let remedy =
        format!("REVOKE UPDATE ON {outbox} FROM {role}; GRANT UPDATE ({sent_at}) ON {outbox} TO {role};");
    let problem = format!("role {name} may change {columns}");
    Ok(Some(EVENTS_CHANGEABLE.found(context.table.to_string(), problem, remedy)))
}

async fn on_others(context: &Context<'_>) -> Result<Option<Finding>, PostgresFault> {
    let mut own: Vec<String> = OWN.iter().map(|relation| context.table.name_of(relation)).collect();
    own.extend(MODULE_NAMES.map(str::to_owned));
    let schema = context.table.schema();
    let most = OTHERS_NAMED + 1;
    let rows = context
        .rows(DOING, OTHERS, &[(&schema, Type::TEXT), (&own, Type::TEXT_ARRAY), (&most, Type::INT8)])
        .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let role = quote_identifier(&context.role.name);
    let named = &rows[..rows.len().min(OTHERS_NAMED as usize)];
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
    Ok(Some(OTHER_TABLES.found(format!("role {}", context.role.name), problem, remedies.join(" "))))
}
