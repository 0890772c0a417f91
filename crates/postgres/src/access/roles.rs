//! The roles of an outbox, as SQL that creates them and grants their privileges.

use std::fmt;
use std::str::FromStr;

use crate::access::grants::{monitor_grants, operator_grants, relay_grants, writer_grants};
use crate::access::module_grants::module_grants;
use crate::connection::exec::FIXED_SEARCH_PATH;
use crate::schema::series::Module;
use crate::table::{TableName, fill, quote_identifier, quote_literal};

/// PostgreSQL truncates longer names silently, so two names could become the same role.
const IDENTIFIER_BYTES_MAX: usize = 63;
/// The longest suffix, `_idempotency`.
const SUFFIX_BYTES_MAX: usize = 12;

/// The name of the relay's role, from which the other names derive. It is used literally, without unquoting or folding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayRole(String);

/// Why a text does not name a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleNameError {
    /// Empty.
    #[error("the name is empty")]
    Empty,
    /// Too long for PostgreSQL, together with the longest suffix.
    #[error("the name has {0} bytes, but the maximum is {max}", max = IDENTIFIER_BYTES_MAX - SUFFIX_BYTES_MAX)]
    TooLong(usize),
    /// Reserved by PostgreSQL.
    #[error("the name is reserved by PostgreSQL. Choose another one")]
    Reserved,
    /// A control character, or `$$`, which would end a DO block.
    #[error("the name contains a control character or `$$`. Choose another one")]
    Unsupported,
}

impl FromStr for RelayRole {
    type Err = RoleNameError;

    fn from_str(name: &str) -> Result<Self, RoleNameError> {
        if name.is_empty() {
            return Err(RoleNameError::Empty);
        }
        if name.len() > IDENTIFIER_BYTES_MAX - SUFFIX_BYTES_MAX {
            return Err(RoleNameError::TooLong(name.len()));
        }
        if name.starts_with("pg_") || name == "public" || name == "none" {
            return Err(RoleNameError::Reserved);
        }
        if name.contains(char::is_control) || name.contains("$$") {
            return Err(RoleNameError::Unsupported);
        }
        Ok(Self(name.to_owned()))
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

    /// The group for monitoring.
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

const HEADER: &str = "\
-- The roles of the outbox {outbox}, each with exactly the privileges that it needs.
--
-- Apply it after the migrations and after each upgrade, in one transaction, as a superuser or as an owner of the tables
-- who may create roles:  psql -v ON_ERROR_STOP=1 --single-transaction -f this-file.sql
-- You can apply it repeatedly. It revokes all other privileges of these roles on these tables.
--
--   {relay}: `outbox-relay run` connects as this role, which may log in. Set a password with \\password, or
--       configure another method in pg_hba.conf.
--   {operator}: a group for operators, who use status, dead-letters, blocked-keys, replay, verify and
--       reap.
--   {monitor}: a group for monitoring, with read access for status.
--   {writer}: a group for applications, which insert events.
--   {inbox}, {idempotency}, {once}: groups for applications that use an optional module. They exist if it is
--       installed.
--
-- People and applications keep their own roles and become members:  GRANT {writer} TO shop;
--
-- None of these roles can read other tables, unless PUBLIC can. Before PostgreSQL 15, every role may create tables and
-- functions in the schema public, and thereby run code as another role that uses them by chance. To revoke this:  REVOKE CREATE ON SCHEMA public FROM PUBLIC;
";

const CREATE: &str = "
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {name_literal}) THEN
        CREATE ROLE {name} {login};
    END IF;
END $$;
";

/// REVOKE on a table also revokes privileges on its columns. In one transaction, no session sees the gap.
const REVOKE: &str = "
-- Revoke all earlier privileges.
REVOKE ALL ON SCHEMA {schema} FROM {roles};
REVOKE ALL ON {outbox}, {lane}, {dead_letter}, {hold}, {blocked_key}, {pause}, {act}, {hold_version}, {setting},
    {reaper}, {migration} FROM {roles};
REVOKE ALL ON FUNCTION {enqueue}, {template}, {record_act} FROM {roles};

-- By default, every role may connect. Grant it explicitly in case that was revoked.
DO $$ BEGIN
    EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %I TO %I, %I, %I', pg_catalog.current_database(),
                              {relay_literal}, {operator_literal}, {monitor_literal});
END $$;
";

const RELAY: &str = "
-- The relay reads events, sets sent_at, deletes sent events, and writes dead letters, holds and blocked keys. When it starts,
-- it records its topic template.
";

const OPERATOR: &str = "
-- Operators can read everything and change dead letters, blocked keys, held topics and old rows. They cannot change events,
-- and cannot write the history: triggers record what they do.
";

const MONITOR: &str = "
-- Monitoring cannot read payloads or headers.
";

const WRITER: &str = "
-- Applications can insert events and read their IDs, for INSERT ... RETURNING. They cannot read anything else of an event, or
-- set id, created_at or sent_at. They can read the relay's topic template.
";

const MODULES: &str = "
-- The installed optional modules. Apply this again after `migrate --with`. Applications call their functions, and use only the
-- rows of their own service. The relay and operators can delete old rows, but not read requests or responses.
";

/// Only with `--with-stats`. Without it, a role can see only its own sessions. Only superusers and roles with ADMIN OPTION can
/// grant it.
const READ_STATS: &str = "
-- Members of pg_read_all_stats can see which relays are connected and what holds vacuum back, but also the statements of
-- all sessions of the server. Without it, `status` shows less.
DO $$ BEGIN
    GRANT pg_read_all_stats TO {operator}, {monitor};
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'a superuser has to run: GRANT pg_read_all_stats TO %, %;',
        pg_catalog.quote_ident({operator_literal}), pg_catalog.quote_ident({monitor_literal});
END $$;
";

/// The relay and operators can read all columns.
const TOPIC_COLUMN: &str = "
-- The optional column topic, if it exists.
DO $$ BEGIN
    GRANT INSERT ({topic_column}) ON {outbox} TO {operator}, {writer};
    GRANT SELECT ({topic_column}) ON {outbox} TO {monitor};
EXCEPTION WHEN undefined_column THEN
    NULL;
END $$;
";

/// An adopted table can have a sequence that writers use themselves.
const SEQUENCE: &str = "
-- The sequence of the IDs. The checks compare it with the highest ID. Only an identity column needs no privilege to insert.
DO $$
DECLARE
    ids text;
    is_identity boolean;
BEGIN
    SELECT pg_catalog.pg_get_serial_sequence({outbox_literal}, a.attname), a.attidentity <> '' INTO ids, is_identity
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = {outbox_literal}::regclass AND a.attname = {id_literal};
    IF ids IS NOT NULL THEN
        EXECUTE pg_catalog.format('GRANT SELECT ON SEQUENCE %s TO %I, %I, %I', ids, {relay_literal}, {operator_literal},
                                  {monitor_literal});
        IF NOT is_identity THEN
            EXECUTE pg_catalog.format('GRANT USAGE ON SEQUENCE %s TO %I, %I', ids, {operator_literal}, {writer_literal});
        END IF;
    END IF;
END $$;
";

const NO_STATS: &str = "
-- Which relays are connected, and what holds vacuum back, is visible only to members of pg_read_all_stats, who also see the
-- statements of all sessions of the server. Print the script with --with-stats to grant it to operators and monitoring.
";

/// Whether operators and monitoring see the sessions of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sessions {
    /// Only their own. `status` then shows less.
    #[default]
    Own,
    /// All, with their statements, as members of `pg_read_all_stats`.
    All,
}

/// The whole script for psql, without BEGIN and COMMIT.
pub fn print(table: &TableName, role: &RelayRole, sessions: Sessions) -> String {
    FIXED_SEARCH_PATH.to_owned() + &statements(table, role, sessions)
}

/// The statements, for a transaction with a fixed search path.
pub(crate) fn statements(table: &TableName, role: &RelayRole, sessions: Sessions) -> String {
    let (operator, monitor, writer) = (role.operator(), role.monitor(), role.writer());
    let modules = Module::ALL.map(|module| (module.name(), role.module(module)));
    let names = [
        ("relay", role.relay()),
        ("operator", operator.as_str()),
        ("monitor", monitor.as_str()),
        ("writer", writer.as_str()),
    ];
    let group_of = |placeholder: &str| {
        let (_, group) = modules.iter().find(|(module, _)| *module == placeholder)?;
        Some(quote_identifier(group))
    };
    let value_of = |placeholder: &str| match placeholder {
        "roles" => Some(names.map(|(_, name)| quote_identifier(name)).join(", ")),
        _ => names
            .iter()
            .find_map(|(word, name)| match placeholder.strip_prefix(word)? {
                "" => Some(quote_identifier(name)),
                "_literal" => Some(quote_literal(name)),
                _ => None,
            })
            .or_else(|| group_of(placeholder))
            .or_else(|| table.value_of(placeholder)),
    };
    let mut sql = fill(HEADER, value_of);
    for (word, name) in names {
        sql += &fill(CREATE, |placeholder| match placeholder {
            "name" => Some(quote_identifier(name)),
            "name_literal" => Some(quote_literal(name)),
            "login" => Some(if word == "relay" { "LOGIN" } else { "NOLOGIN" }.to_owned()),
            _ => None,
        });
    }
    sql += &fill(REVOKE, value_of);
    sql += &(RELAY.to_owned() + &relay_grants(table, role.relay()));
    sql += &(OPERATOR.to_owned() + &operator_grants(table, &operator));
    sql += &(MONITOR.to_owned() + &monitor_grants(table, &monitor));
    sql += &(WRITER.to_owned() + &writer_grants(table, &writer));
    sql += &fill(TOPIC_COLUMN, value_of);
    sql += &fill(SEQUENCE, value_of);
    sql += &(MODULES.to_owned() + &module_grants(table, role));
    sql + &match sessions {
        Sessions::Own => NO_STATS.to_owned(),
        Sessions::All => fill(READ_STATS, value_of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_role_names_are_rejected() {
        use RoleNameError::*;
        let long = "r".repeat(52);
        for (name, error) in [
            ("", Empty),
            (&*long, TooLong(52)),
            ("pg_relay", Reserved),
            ("public", Reserved),
            ("none", Reserved),
            ("a\nb", Unsupported),
            ("a$$b", Unsupported),
        ] {
            assert_eq!(name.parse::<RelayRole>(), Err(error), "{name:?}");
        }
        let longest: RelayRole = long[..51].parse().unwrap();
        assert_eq!(longest.module(Module::Idempotency).len(), 63);
    }
}
