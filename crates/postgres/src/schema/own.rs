//! Whether a relation with the name of one of ours is ours. A role that may create tables in the schema could have made it, so
//! that a view, a trigger, a rule or a default runs code as the role that uses it. So this is checked before the first use.

use tokio_postgres::types::Type;
use tokio_postgres::{Error, GenericClient, Row};

use crate::connection::transaction::{Params, ShortTransaction};
use crate::schema::migrate::MIGRATIONS;
use crate::table::{TableName, fill, quote_identifier};
use relay::failure::{FaultKind, PostgresFault};

/// A relation or function that has the name of one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Its name, quoted.
    pub(crate) name: String,
    /// What is wrong, with the name of the owner.
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

/// Whether a role is a superuser, the current one, or has the rights of the owner of the outbox. In a query whose parameters
/// $1 and $2 are the schema and the outbox.
const TRUSTED: &str = "EXISTS (
        SELECT FROM pg_roles AS who WHERE who.oid = {owner} AND (who.rolsuper OR who.rolname = current_user OR EXISTS (
            SELECT FROM pg_class AS o JOIN pg_namespace AS s ON s.oid = o.relnamespace
            WHERE s.nspname = $1 AND o.relname = $2 AND o.relkind = 'r' AND pg_has_role(who.oid, o.relowner, 'MEMBER'))))";

/// A table and its defaults, constraints, indexes, policies and triggers depend on the code that they call. The server does not
/// record dependencies on its own functions. A superuser does not run even the code of the outbox's owner, except for our
/// trigger functions, if nothing of them was changed: they run as that owner. The outbox itself may have code of the application,
/// which only a superuser does not run.
///
/// A foreign key on one of our tables may delete or change rows of its own table, whose triggers run as the role that deletes ours
/// (before PostgreSQL 18, with all of that role's rights). Only REFERENCES is needed to create one.
const FOREIGN: &str = "
WITH relation AS (
    SELECT c.oid, c.relname, c.relkind, c.relowner FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
    WHERE s.nspname = $1 AND c.relname = ANY ($3)
), part AS (
    SELECT oid AS relation, 'pg_class'::regclass::oid AS class, oid AS object FROM relation
    UNION ALL SELECT adrelid, 'pg_attrdef'::regclass, oid FROM pg_attrdef
    UNION ALL SELECT conrelid, 'pg_constraint'::regclass, oid FROM pg_constraint
    UNION ALL SELECT indrelid, 'pg_class'::regclass, indexrelid FROM pg_index
    UNION ALL SELECT polrelid, 'pg_policy'::regclass, oid FROM pg_policy
    UNION ALL SELECT tgrelid, 'pg_trigger'::regclass, oid FROM pg_trigger WHERE NOT tgisinternal
), code AS (
    SELECT 'pg_proc'::regclass::oid AS class, oid, proname AS name, proowner AS owner FROM pg_proc
    WHERE NOT (prosecdef AND proconfig = ARRAY['search_path=pg_catalog, pg_temp']
               AND (proname::text, prosrc) IN (SELECT * FROM unnest($4::text[], $5::text[])))
    UNION ALL SELECT 'pg_operator'::regclass, oid, oprname, oprowner FROM pg_operator
    UNION ALL SELECT 'pg_type'::regclass, oid, typname, typowner FROM pg_type
    UNION ALL SELECT 'pg_opclass'::regclass, oid, opcname, opcowner FROM pg_opclass
)
SELECT r.relname::text, pg_get_userbyid(r.relowner)::text, r.relkind::text, {relation_is_trusted},
       EXISTS (SELECT FROM pg_rewrite AS w WHERE w.ev_class = r.oid),
       EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = r.oid),
       (SELECT min(code.name::text)
        FROM part JOIN pg_depend AS d ON d.classid = part.class AND d.objid = part.object
        JOIN code ON code.class = d.refclassid AND code.oid = d.refobjid
        WHERE part.relation = r.oid
          AND (r.relname <> $2 OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
          AND NOT EXISTS (SELECT FROM pg_roles AS who
                          WHERE who.oid = code.owner AND (who.rolsuper OR who.rolname = current_user))
          AND ((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR NOT {code_is_trusted})),
       k.name::text, k.place, k.owner::text
FROM relation AS r
LEFT JOIN LATERAL (
    SELECT f.conname AS name, f.conrelid::regclass::text AS place, pg_get_userbyid(c.relowner) AS owner
    FROM pg_constraint AS f JOIN pg_class AS c ON c.oid = f.conrelid
    WHERE f.contype = 'f' AND f.confrelid = r.oid
      AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))
      AND NOT EXISTS (SELECT FROM pg_roles AS who
                      WHERE who.oid = c.relowner AND (who.rolsuper OR who.rolname = current_user))
      AND ((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR NOT {key_is_trusted})
    ORDER BY f.oid
    LIMIT 1
) AS k ON true
UNION ALL
SELECT p.proname::text, pg_get_userbyid(p.proowner)::text, 'function', false, false, false, NULL, NULL, NULL, NULL
FROM pg_proc AS p JOIN pg_namespace AS s ON s.oid = p.pronamespace
WHERE s.nspname = $1 AND p.proname = ANY ($3) AND NOT {function_is_trusted}";

/// Which of these names belong to a relation or function that is not ours. Call it in a transaction.
pub(crate) async fn foreign(
    client: &impl GenericClient,
    table: &TableName,
    names: &[String],
) -> Result<Vec<Foreign>, Error> {
    let (schema, outbox, (triggers, bodies)) = (table.schema(), table.name_of("{outbox}"), triggers(table));
    let params: Params<'_> = &[
        (&schema, Type::TEXT),
        (&outbox, Type::TEXT),
        (&names, Type::TEXT_ARRAY),
        (&triggers, Type::TEXT_ARRAY),
        (&bodies, Type::TEXT_ARRAY),
    ];
    Ok(client.query_typed(&sql(), params).await?.iter().filter_map(|row| judge(table, row)).collect())
}

/// A fault if one of these names belongs to a relation or function that is not ours.
pub(crate) async fn require(
    transaction: &ShortTransaction,
    doing: &'static str,
    table: &TableName,
    names: &[String],
) -> Result<(), PostgresFault> {
    let (schema, outbox, (triggers, bodies)) = (table.schema(), table.name_of("{outbox}"), triggers(table));
    let params: Params<'_> = &[
        (&schema, Type::TEXT),
        (&outbox, Type::TEXT),
        (&names, Type::TEXT_ARRAY),
        (&triggers, Type::TEXT_ARRAY),
        (&bodies, Type::TEXT_ARRAY),
    ];
    let rows = transaction.query(doing, &sql(), params).await?;
    match rows.iter().find_map(|row| judge(table, row)) {
        Some(Foreign { name, problem, remedy }) => {
            let message = format!("{name}: {problem}, so it was not used. Fix: {remedy}");
            Err(PostgresFault { kind: FaultKind::Refused, doing, message })
        }
        None => Ok(()),
    }
}

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

fn sql() -> String {
    let trusted = |owner: &str| Some(fill(TRUSTED, |_| Some(owner.to_owned())));
    fill(FOREIGN, |placeholder| match placeholder {
        "relation_is_trusted" => trusted("r.relowner"),
        "code_is_trusted" => trusted("code.owner"),
        "key_is_trusted" => trusted("c.relowner"),
        "function_is_trusted" => trusted("p.proowner"),
        _ => None,
    })
}

fn judge(table: &TableName, row: &Row) -> Option<Foreign> {
    let (name, owner, kind): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
    let (is_trusted, has_rules, has_children): (bool, bool, bool) = (row.get(3), row.get(4), row.get(5));
    let (name, role) = (table.sibling(name), quote_identifier(owner));
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
        return Some(Foreign {
            problem: format!(
                "the foreign key {key} of the table {place} of the role {by} references it, so a deleted row may run code of {by}"
            ),
            remedy: format!(
                "ALTER TABLE {place} DROP CONSTRAINT {key}; and REVOKE REFERENCES ON {name} FROM {role}; If you trust {by}, connect as \
                 a role that is no superuser, or as the owner of that table"
            ),
            name,
        });
    }
    let yours = format!("ALTER {} {name} OWNER TO CURRENT_USER;", what.to_uppercase());
    if row.get::<_, &str>(0) == table.name_of("{outbox}") {
        let code: &str = row.get::<_, Option<&str>>(6)?;
        return Some(Foreign {
            name,
            problem: format!(
                "a trigger, default, constraint, index, policy or column of this table of the role {owner} uses {code}, which \
                 another role can change, and it would run as a superuser"
            ),
            remedy: format!(
                "connect as a role that is no superuser, such as one of those that `outbox-relay migrate --print-roles` prints; \
                 or drop what uses {code}"
            ),
        });
    }
    let (problem, remedy) = if !matches!(what, "table" | "function") {
        (format!("it is a {what} of the role {owner}, but must be an ordinary table"), String::new())
    } else if !is_trusted {
        let problem = format!(
            "it is a {what} of the role {owner}, which is neither a superuser nor the owner of the outbox"
        );
        (problem, format!("if you trust {owner}, connect as {role}, or run: {yours} Otherwise, "))
    } else if has_rules || has_children && kind == "r" {
        let what = if has_rules { "rules" } else { "child tables" };
        (format!("the table of the role {owner} has {what}"), format!("drop the {what}, or "))
    } else {
        let code: &str = row.get::<_, Option<&str>>(6)?;
        let problem = format!(
            "a trigger, default, constraint, index, policy or column of this table of the role {owner} uses {code}, which \
             another role can change"
        );
        (problem, format!("drop what uses {code}, or "))
    };
    Some(Foreign { name, problem, remedy: format!("{remedy}find out who created it, and drop or rename it") })
}
