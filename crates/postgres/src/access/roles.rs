//! The roles of an outbox, as SQL that creates them and grants their privileges: printed for an administrator, or run by `init`.

use crate::access::grants::{
    grants, monitor_grants, operator_grants, privileges_of, relay_grants, writer_grants,
};
use crate::connection::errors::ServerError;
use crate::connection::exec::{FIXED_SEARCH_PATH, NEWER_SETTINGS, open};
use crate::sql::sql;
use crate::table::{IDENTIFIER_BYTES_MAX, Module, TableName, fill, quote_identifier, quote_literal};
use postgres_protocol::password::scram_sha_256;
use settings::secret::Secret;
use std::fmt;
use std::str::FromStr;
use tokio_postgres::{Client, GenericClient};

/// The longest suffix, `_idempotency`.
const SUFFIX_BYTES_MAX: usize = 12;

/// The name of the relay's role, from which the other names derive. It is used literally, without unquoting or folding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayRole(String);

impl FromStr for RelayRole {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let max = IDENTIFIER_BYTES_MAX - SUFFIX_BYTES_MAX;
        let problem = if name.is_empty() {
            "is empty".to_owned()
        } else if name.len() > max {
            format!("has {} bytes, but the maximum is {max}", name.len())
        } else if name.starts_with("pg_") || name == "public" || name == "none" {
            "is reserved by PostgreSQL. Choose another one".to_owned()
        } else if name.contains(char::is_control) || name.contains("$$") {
            // The latter would end a DO block.
            "contains a control character or `$$`. Choose another one".to_owned()
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(format!("the name {problem}"))
    }
}

impl fmt::Display for RelayRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl RelayRole {
    /// The role of `outbox-relay run`.
    pub fn relay(&self) -> &str {
        &self.0
    }

    /// The group of the operators.
    pub fn operator(&self) -> String {
        format!("{}_operator", self.0)
    }

    /// Makes a role a member of the group of the operators.
    pub fn operator_grant(&self, role: &str) -> String {
        format!("GRANT {} TO {}", quote_identifier(&self.operator()), quote_identifier(role))
    }

    pub fn monitor(&self) -> String {
        format!("{}_monitor", self.0)
    }

    /// The group of the applications that insert events.
    pub fn writer(&self) -> String {
        format!("{}_writer", self.0)
    }

    /// The group of the applications that use a module.
    pub fn module(&self, module: Module) -> String {
        format!("{}_{module}", self.0)
    }
}

/// In place of the statement that lets operators and monitoring see the sessions of the server.
const NO_SESSIONS: &str = "\
-- Which relays are connected, and what holds vacuum back, is visible only to members of pg_read_all_stats, who also see the
-- statements of all sessions of the server. Print the script with --with-stats to grant it to operators and monitoring.";

/// The whole script for psql, without BEGIN and COMMIT. If `with_stats` is true, operators and monitoring become members of
/// `pg_read_all_stats` and see all sessions of the server with their statements. Otherwise `status` shows less.
pub fn print(table: &TableName, role: &RelayRole, with_stats: bool) -> String {
    FIXED_SEARCH_PATH.to_owned() + &statements(table, role, with_stats)
}

const MODULES_ONLY: &str = "\
-- Creates the groups for applications that use a module, in a database without an outbox. Apply this script after the migrations, as
-- a superuser or as an owner of the tables who may create roles.

";

/// The part of the script for these modules, for a database without an outbox. It names only the groups of the modules, because
/// the other roles need not exist.
pub fn print_modules(table: &TableName, role: &RelayRole, modules: &[Module]) -> String {
    let blocks = modules.iter().map(|module| {
        let group = role.module(*module);
        let granted = grants(table, &group, &[privileges_of(*module).call]);
        module_grants(table, role, *module, &[group], &granted)
    });
    FIXED_SEARCH_PATH.to_owned() + MODULES_ONLY + &blocks.collect::<Vec<_>>().join("\n")
}

/// The statements, for a transaction with a fixed search path. REVOKE on a table also revokes privileges on its columns. In
/// one transaction, no session sees the gap.
pub(crate) fn statements(table: &TableName, role: &RelayRole, with_stats: bool) -> String {
    let (operator, monitor, writer) = (role.operator(), role.monitor(), role.writer());
    let modules = Module::ALL.map(|module| {
        let (privileges, group) = (privileges_of(module), role.module(module));
        let granted = grants(table, role.relay(), &[privileges.reap])
            + &grants(table, &operator, &[privileges.operator, privileges.reap])
            + &grants(table, &group, &[privileges.call]);
        let roles = [role.relay().to_owned(), operator.clone(), monitor.clone(), writer.clone(), group];
        module_grants(table, role, module, &roles, &granted).trim_end().to_owned()
    });
    let mut values = vec![
        ("relay_grants", relay_grants(table, role.relay())),
        ("operator_grants", operator_grants(table, &operator)),
        ("monitor_grants", monitor_grants(table, &monitor)),
        ("writer_grants", writer_grants(table, &writer)),
        ("module_grants", modules.join("\n\n")),
        ("relay", quote_identifier(role.relay())),
        ("relay_literal", quote_literal(role.relay())),
        ("operator", quote_identifier(&operator)),
        ("operator_literal", quote_literal(&operator)),
        ("monitor", quote_identifier(&monitor)),
        ("monitor_literal", quote_literal(&monitor)),
        ("writer", quote_identifier(&writer)),
        ("writer_literal", quote_literal(&writer)),
    ];
    values.extend(Module::ALL.map(|module| (module.name(), quote_identifier(&role.module(module)))));
    let sessions = match with_stats {
        false => NO_SESSIONS.to_owned(),
        // Only superusers and roles with ADMIN OPTION can grant it.
        true => render(sql!("grants/sessions"), table, &values),
    };
    values.push(("sessions", sessions));
    // Another column may have the name.
    let topic = table.columns().topic().map(|_| render(sql!("grants/topic"), table, &values));
    values.push(("topic_grants", topic.unwrap_or_default()));
    render(sql!("grants/roles"), table, &values)
}

/// A file with names in braces, like those of migrations, because psql replaces no variable in a DO block.
fn render(text: &str, table: &TableName, values: &[(&str, String)]) -> String {
    fill(text, |placeholder| {
        let value = values.iter().find(|(name, _)| *name == placeholder);
        value.map(|(_, value)| value.trim_end().to_owned()).or_else(|| table.value_of(placeholder))
    })
}

/// A block that creates the group of a module, revokes all earlier privileges of the roles and grants the current ones. It skips
/// a module that is not installed, or whose migrations are pending. In earlier versions, all writers could use the modules: they
/// keep that.
fn module_grants(
    table: &TableName,
    role: &RelayRole,
    module: Module,
    roles: &[String],
    granted: &str,
) -> String {
    let privileges = privileges_of(module);
    let group = role.module(module);
    let called = [privileges.reap, privileges.call].concat();
    let functions: Vec<String> = called
        .iter()
        .filter(|privilege| privilege.kind == "EXECUTE")
        .map(|privilege| table.render(privilege.on))
        .collect();
    let first_call = privileges.call.first().map_or("", |privilege| privilege.on);
    let roles: Vec<String> = roles.iter().map(|role| quote_identifier(role)).collect();
    let values = [
        ("services_literal", quote_literal(&table.render(privileges.services))),
        ("services", table.render(privileges.services)),
        ("table", table.render(privileges.table)),
        ("group", quote_identifier(&group)),
        ("group_literal", quote_literal(&group)),
        ("writer_literal", quote_literal(&role.writer())),
        ("call_literal", quote_literal(&table.render(first_call))),
        ("functions", functions.join(", ")),
        ("roles", roles.join(", ")),
        ("grants", granted.trim_end().replace('\n', "\n    ")),
    ];
    render(sql!("grants/module"), table, &values)
}

/// A role or table of this outbox may be locked by another session.
const SETTINGS: &str = "SET LOCAL lock_timeout = '5s'";

const EXISTING: &str = "
SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = ANY($1) ORDER BY rolname";

const SELF: &str = "
SELECT current_user::text, rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = current_user";

/// In place of the verifier, in a text that a person reads.
const NOT_SHOWN: &str = "SCRAM-SHA-256 verifier, not shown";

/// The statement that gives the connected role the privilege that it probably lacks.
pub async fn missing_grant(client: &impl GenericClient, table: &TableName) -> Result<String, ServerError> {
    let row = client.query_typed_one(SELF, &[]).await?;
    let (role, may_create_roles) = (quote_identifier(row.get(0)), row.get(1));
    Ok(if may_create_roles {
        format!("GRANT <the role that owns {}> TO {role}; (or connect as that role)", table.quoted())
    } else {
        format!("ALTER ROLE {role} CREATEROLE; (or connect as a role that may create roles)")
    })
}

/// Which of the roles of an outbox exist.
pub async fn existing(client: &impl GenericClient, role: &RelayRole) -> Result<Vec<String>, ServerError> {
    let names = vec![role.relay().to_owned(), role.operator(), role.monitor(), role.writer()];
    let rows = client.query_typed(EXISTING, &params![names => TEXT_ARRAY]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The SQL that creates the missing roles and grants their privileges, without BEGIN and COMMIT.
pub struct NewRoles {
    /// The whole SQL. Has a verifier in place of the password, so that neither the connection nor the log of the server
    /// shows it.
    pub sql: String,
    /// The SQL for a person.
    pub shown: String,
}

impl NewRoles {
    /// With a password, the relay's role is created first. This fails if another session has created it meanwhile, so
    /// that no password is ever replaced.
    pub fn new(table: &TableName, role: &RelayRole, password: Option<&Secret>, with_stats: bool) -> NewRoles {
        let with = |verifier: &str| {
            let (name, verifier) = (quote_identifier(role.relay()), quote_literal(verifier));
            let create = format!("CREATE ROLE {name} LOGIN PASSWORD {verifier};\n\n");
            password.map(|_| create).unwrap_or_default() + &statements(table, role, with_stats)
        };
        let verifier = password.map(|password| scram_sha_256(password.expose().as_bytes()));
        NewRoles { sql: with(&verifier.unwrap_or_default()), shown: with(NOT_SHOWN) }
    }

    /// Runs the SQL in one transaction.
    pub async fn create(&self, client: &mut Client) -> Result<(), ServerError> {
        let transaction = open(client, false, &format!("{SETTINGS}; {NEWER_SETTINGS}")).await?;
        transaction.batch_execute(&self.sql).await?;
        Ok(transaction.commit().await?)
    }
}

/// A command that inserts an event, for a person who tries the outbox.
pub fn example_insert(table: &TableName, aggregate_type: &str) -> String {
    let aggregate_type = quote_literal(aggregate_type);
    format!(
        "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) VALUES ({aggregate_type}, '42', \
         'Tried', '{{}}')"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Column, Columns};

    #[test]
    fn invalid_role_names_are_rejected() {
        let long = "r".repeat(52);
        for (name, problem) in [
            ("", "the name is empty"),
            (&*long, "the name has 52 bytes, but the maximum is 51"),
            ("pg_relay", "the name is reserved by PostgreSQL. Choose another one"),
            ("public", "the name is reserved by PostgreSQL. Choose another one"),
            ("none", "the name is reserved by PostgreSQL. Choose another one"),
            ("a\nb", "the name contains a control character or `$$`. Choose another one"),
            ("a$$b", "the name contains a control character or `$$`. Choose another one"),
        ] {
            assert_eq!(name.parse::<RelayRole>().unwrap_err(), problem, "{name:?}");
        }
        let longest: RelayRole = long[..51].parse().unwrap();
        assert_eq!(longest.module(Module::Idempotency).len(), 63);
    }

    #[test]
    fn a_column_that_is_named_like_the_optional_one_gives_no_privileges() {
        let table = |columns: &[(Column, &str)]| {
            let columns = columns.iter().map(|(column, name)| (*column, (*name).to_owned()));
            "app.outbox".parse::<TableName>().unwrap().with_columns(Columns::new(columns))
        };
        let (role, granted) = ("relay".parse().unwrap(), "GRANT SELECT (topic) ON");
        assert!(print(&table(&[]), &role, false).contains(granted));
        assert!(!print(&table(&[(Column::Payload, "topic")]), &role, false).contains(granted));
    }

    #[test]
    fn groups_of_modules_need_no_other_role() {
        let (table, role) = ("app.outbox".parse().unwrap(), "relay".parse().unwrap());
        let sql = print_modules(&table, &role, &[Module::Inbox, Module::Once]);
        for group in ["relay_inbox", "relay_once"] {
            assert!(sql.contains(&format!("CREATE ROLE \"{group}\" NOLOGIN;")), "{sql}");
        }
        for other in
            ["\"relay\"", "\"relay_operator\"", "\"relay_monitor\"", "\"relay_writer\"", "_idempotency"]
        {
            assert!(!sql.contains(other), "{other}: {sql}");
        }
    }

    #[test]
    fn the_password_is_neither_in_the_sql_nor_in_the_shown_text() {
        let (table, role) = ("app.outbox".parse().unwrap(), "the relay".parse().unwrap());
        let roles = NewRoles::new(&table, &role, Some(&Secret::new("hunter2")), false);
        assert!(roles.sql.starts_with("CREATE ROLE \"the relay\" LOGIN PASSWORD 'SCRAM-SHA-256$4096:"));
        assert!(
            roles.shown.starts_with("CREATE ROLE \"the relay\" LOGIN PASSWORD 'SCRAM-SHA-256 verifier, ")
        );
        assert!(!roles.sql.contains("hunter2") && !roles.shown.contains("hunter2"));
        let kept = NewRoles::new(&table, &role, None, true);
        assert_eq!(kept.sql, statements(&table, &role, true));
        assert_eq!(kept.shown, kept.sql);
    }
}
