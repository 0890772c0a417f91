//! Creates the roles of a new outbox, for `init`.

use std::fmt::Write as _;

use postgres_protocol::password::scram_sha_256;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};

use crate::access::roles::{self, RelayRole, Sessions};
use crate::connection::errors::ServerError;
use crate::connection::exec::open;
use crate::table::{TableName, quote_identifier, quote_literal};
use settings::secret::Secret;

/// A role or table of this outbox may be locked by another session.
const SETTINGS: &str = "SET LOCAL lock_timeout = '5s'";

const EXISTING: &str = "
SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = ANY($1) ORDER BY rolname";

const SELF: &str = "
SELECT current_user::text, rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = current_user";

/// In place of the verifier, in a text that a person reads.
const NOT_SHOWN: &str = "SCRAM-SHA-256 verifier, not shown";

/// The role that is connected.
pub struct Creator {
    pub(crate) name: String,
    pub(crate) may_create_roles: bool,
}

impl Creator {
    pub async fn read(client: &impl GenericClient) -> Result<Creator, ServerError> {
        let row = client.query_typed_one(SELF, &[]).await?;
        Ok(Creator { name: row.get(0), may_create_roles: row.get(1) })
    }

    /// The statement that gives it the privilege that it probably lacks.
    pub fn missing_grant(&self, table: &TableName) -> String {
        let role = quote_identifier(&self.name);
        if self.may_create_roles {
            format!("GRANT <the role that owns {}> TO {role}; (or connect as that role)", table.quoted())
        } else {
            format!("ALTER ROLE {role} CREATEROLE; (or connect as a role that may create roles)")
        }
    }
}

/// Which of the roles of an outbox exist.
pub async fn existing(client: &impl GenericClient, role: &RelayRole) -> Result<Vec<String>, ServerError> {
    let names = vec![role.relay().to_owned(), role.operator(), role.monitor(), role.writer()];
    let rows = client.query_typed(EXISTING, &[(&names, Type::TEXT_ARRAY)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The SQL that creates the missing roles and grants their privileges, without BEGIN and COMMIT.
pub struct NewRoles {
    /// The whole SQL. Has a verifier in place of the password, so that neither the connection nor the log of the server
    /// shows it.
    sql: String,
    /// The SQL for a person.
    shown: String,
}

impl NewRoles {
    /// With a password, the relay's role is created first. This fails if another session has created it meanwhile, so
    /// that no password is ever replaced.
    pub fn new(
        table: &TableName,
        role: &RelayRole,
        password: Option<&Secret>,
        sessions: Sessions,
    ) -> NewRoles {
        let with = |verifier: &str| {
            let mut sql = String::new();
            if password.is_some() {
                let (name, verifier) = (quote_identifier(role.relay()), quote_literal(verifier));
                _ = write!(sql, "CREATE ROLE {name} LOGIN PASSWORD {verifier};\n\n");
            }
            sql + &roles::statements(table, role, sessions)
        };
        let verifier = password.map(|password| scram_sha_256(password.expose().as_bytes()));
        NewRoles { sql: with(&verifier.unwrap_or_default()), shown: with(NOT_SHOWN) }
    }

    pub fn sql(&self) -> &str {
        &self.sql
    }

    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Runs the SQL in one transaction.
    pub async fn create(&self, client: &mut Client) -> Result<(), ServerError> {
        let transaction = open(client, false, SETTINGS).await?;
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

    #[test]
    fn the_password_is_neither_in_the_sql_nor_in_the_shown_text() {
        let (table, role) = ("app.outbox".parse().unwrap(), "the relay".parse().unwrap());
        let roles = NewRoles::new(&table, &role, Some(&Secret::new("hunter2")), Sessions::Own);
        assert!(roles.sql().starts_with("CREATE ROLE \"the relay\" LOGIN PASSWORD 'SCRAM-SHA-256$4096:"));
        assert!(
            roles.shown().starts_with("CREATE ROLE \"the relay\" LOGIN PASSWORD 'SCRAM-SHA-256 verifier, ")
        );
        assert!(!roles.sql().contains("hunter2") && !roles.shown().contains("hunter2"));
        let kept = NewRoles::new(&table, &role, None, Sessions::All);
        assert_eq!(kept.sql(), roles::statements(&table, &role, Sessions::All));
        assert_eq!(kept.shown(), kept.sql());
    }
}
