//! Whether a relation with the name of one of ours is ours. A role that may create tables in the schema could have made it, so
//! that a view, a trigger, a rule or a default runs code as the role that uses it. So this is checked before the first use.

use crate::connection::exec::ShortTransaction;
use crate::schema::series::MIGRATIONS;
use crate::sql::{bare, sql};
use crate::table::{TableName, quote_identifier};
use relay::failure::{FaultKind, PostgresFault};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, GenericClient, Row};

/// A relation or function that has the name of one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Its name, quoted.
    pub(crate) name: String,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

/// Which of these names belong to a relation or function that is not ours. Call it in a transaction.
pub(crate) async fn foreign(
    client: &impl GenericClient,
    table: &TableName,
    names: &[String],
) -> Result<Vec<Foreign>, Error> {
    let rows = client.query_typed(bare(FOREIGN), &Names::new(table, names).params()).await?;
    Ok(rows.iter().filter_map(|row| judge(table, row)).collect())
}

/// A fault if one of these names belongs to a relation or function that is not ours.
pub(crate) async fn require(
    transaction: &ShortTransaction,
    doing: &'static str,
    table: &TableName,
    names: &[String],
) -> Result<(), PostgresFault> {
    let rows = transaction.query(doing, bare(FOREIGN), &Names::new(table, names).params()).await?;
    match rows.iter().find_map(|row| judge(table, row)) {
        Some(Foreign { name, problem, remedy }) => {
            let message = format!("{name}: {problem}, so it was not used. Fix: {remedy}");
            Err(PostgresFault { kind: FaultKind::Refused, doing, message })
        }
        None => Ok(()),
    }
}

const FOREIGN: &str = sql!("check/foreign");

/// The parameters of [`FOREIGN`].
struct Names<'a> {
    schema: &'a str,
    outbox: String,
    names: &'a [String],
    triggers: Vec<String>,
    bodies: Vec<String>,
}

impl<'a> Names<'a> {
    fn new(table: &'a TableName, names: &'a [String]) -> Names<'a> {
        let (triggers, bodies) = triggers(table);
        Names { schema: table.schema(), outbox: table.name_of("{outbox}"), names, triggers, bodies }
    }

    fn params(&self) -> [(&(dyn ToSql + Sync), Type); 5] {
        [
            (&self.schema, Type::TEXT),
            (&self.outbox, Type::TEXT),
            (&self.names, Type::TEXT_ARRAY),
            (&self.triggers, Type::TEXT_ARRAY),
            (&self.bodies, Type::TEXT_ARRAY),
        ]
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
