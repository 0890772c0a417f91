//! The schema of the modules, and the errors of their SQL functions.

use pg_outbox::__private::{Kind, Statement, quoted_schema};
use pg_outbox::{PostgresError, TableNameError};
use thiserror::Error;

/// The schema of a module, as SQL.
#[derive(Debug, Clone)]
pub(crate) struct Schema(String);

impl Schema {
    pub(crate) fn parse(name: &str) -> Result<Schema, TableNameError> {
        Ok(Schema(quoted_schema(name)?))
    }

    /// The default schema.
    pub(crate) fn public() -> Schema {
        Schema("\"public\"".to_owned())
    }

    /// A call of functions, which the SQL names as `{schema}.name`.
    pub(crate) fn call(&self, sql: &str, columns: &'static [Kind]) -> Statement {
        Statement::new(sql.replace("{schema}", &self.0), columns)
    }
}

/// Why a module's call failed.
///
/// ```
/// use pg_idempotency::DatabaseError;
///
/// fn advice(error: &DatabaseError) -> String {
///     match error {
///         DatabaseError::NotInstalled { module, .. } => format!("run `outbox-relay migrate --with {module}`"),
///         other => format!("roll back: {}", other.postgres()),
///     }
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// This schema does not contain the tables and functions of the module.
    #[error(
        "the {module} module is not installed in this database. Run `outbox-relay migrate --with {module}`"
    )]
    NotInstalled {
        /// The module.
        module: &'static str,
        /// The error of PostgreSQL.
        source: PostgresError,
    },
    /// The call needs an open transaction. No statement was sent. Only connections of sqlx and diesel can cause this error:
    /// the types of other drivers rule it out, except with sea-orm after a nested `begin` has failed, which is not detected.
    #[error(
        "cannot call the {module} module, because no transaction is open. Begin one with the driver's `begin()` or \
         `transaction(..)`"
    )]
    NoTransaction {
        /// The module.
        module: &'static str,
        /// SQLSTATE 25P01, as PostgreSQL would report it.
        source: PostgresError,
    },
    /// The call commits by itself, but the connection has an open transaction. No statement was sent. Only drivers that allow
    /// access to the connection of an open transaction can cause this error.
    #[error(
        "cannot call the {module} module, because the call commits by itself and a transaction is open. Call it \
         before the transaction begins"
    )]
    InTransaction {
        /// The module.
        module: &'static str,
        /// SQLSTATE 25001, as PostgreSQL would report it.
        source: PostgresError,
    },
    /// PostgreSQL rejected the call or is unavailable. Roll back. [`PostgresError::sqlstate`] determines whether a retry can
    /// succeed.
    #[error("the call to the {module} module failed")]
    Postgres {
        /// The module.
        module: &'static str,
        /// The error of PostgreSQL or the connection.
        source: PostgresError,
    },
}

impl DatabaseError {
    pub(crate) fn new(module: &'static str, source: PostgresError) -> DatabaseError {
        match source.sqlstate() {
            // Undefined function, or undefined schema.
            Some("42883" | "3F000") => DatabaseError::NotInstalled { module, source },
            Some("25P01") => DatabaseError::NoTransaction { module, source },
            Some("25001") => DatabaseError::InTransaction { module, source },
            _ => DatabaseError::Postgres { module, source },
        }
    }

    /// The error of PostgreSQL or the connection.
    pub fn postgres(&self) -> &PostgresError {
        match self {
            DatabaseError::NotInstalled { source, .. }
            | DatabaseError::NoTransaction { source, .. }
            | DatabaseError::InTransaction { source, .. }
            | DatabaseError::Postgres { source, .. } => source,
        }
    }
}
