//! Statements and their results, independent of the driver.

#[cfg(feature = "_modules")]
use crate::error::PostgresError;
#[cfg(feature = "_modules")]
use crate::table::{TableNameError, quoted_schema};

/// A statement, usually a call of a function, with the kinds of its columns. Each parameter occurs once, in order.
#[derive(Debug)]
pub struct Call {
    sql: String,
    columns: &'static [Kind],
}

/// The value of a parameter.
#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    Text(&'a str),
    Texts(&'a [&'a str]),
    Bytes(Option<&'a [u8]>),
    ByteStrings(&'a [&'a [u8]]),
    Flags(&'a [bool]),
    Seconds(f64),
    Number(i32),
}

/// The expected kind of a column.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    Bytes,
    Flag,
    Flags,
    Seconds,
    Number,
}

/// The value of a column.
#[derive(Debug)]
pub enum Column {
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Flag(bool),
    Flags(Vec<bool>),
    Seconds(Option<f64>),
    Number(Option<i32>),
}

/// The columns of a row, to be read in the order of the [`Call`].
#[derive(Debug)]
pub struct Answer(std::vec::IntoIter<Column>);

impl Call {
    /// A call of functions, which the SQL names as `{schema}.name`.
    #[cfg(feature = "_modules")]
    pub fn new(schema: &Schema, sql: &str, columns: &'static [Kind]) -> Call {
        Call { sql: sql.replace("{schema}", &schema.0), columns }
    }

    /// Any statement.
    pub fn statement(sql: String, columns: &'static [Kind]) -> Call {
        Call { sql, columns }
    }

    pub fn sql(&self) -> &str {
        &self.sql
    }

    pub fn columns(&self) -> &'static [Kind] {
        self.columns
    }
}

/// The schema of the modules, as SQL.
#[cfg(feature = "_modules")]
#[derive(Debug, Clone)]
pub struct Schema(String);

#[cfg(feature = "_modules")]
impl Schema {
    pub fn parse(name: &str) -> Result<Schema, TableNameError> {
        Ok(Schema(quoted_schema(name)?))
    }

    /// The default schema of the modules.
    pub fn public() -> Schema {
        Schema("\"public\"".to_owned())
    }
}

impl Answer {
    pub fn new(columns: Vec<Column>) -> Answer {
        Answer(columns.into_iter())
    }

    pub fn text(&mut self) -> Option<String> {
        match self.0.next() {
            Some(Column::Text(text)) => text,
            other => unreachable!("the call does not list text here: {other:?}"),
        }
    }

    pub fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next() {
            Some(Column::Bytes(bytes)) => bytes,
            other => unreachable!("the call does not list bytes here: {other:?}"),
        }
    }

    pub fn flag(&mut self) -> bool {
        match self.0.next() {
            Some(Column::Flag(flag)) => flag,
            other => unreachable!("the call does not list a flag here: {other:?}"),
        }
    }

    pub fn flags(&mut self) -> Vec<bool> {
        match self.0.next() {
            Some(Column::Flags(flags)) => flags,
            other => unreachable!("the call does not list flags here: {other:?}"),
        }
    }

    pub fn seconds(&mut self) -> Option<f64> {
        match self.0.next() {
            Some(Column::Seconds(seconds)) => seconds,
            other => unreachable!("the call does not list seconds here: {other:?}"),
        }
    }

    pub fn number(&mut self) -> Option<i32> {
        match self.0.next() {
            Some(Column::Number(number)) => number,
            other => unreachable!("the call does not list a number here: {other:?}"),
        }
    }
}

/// Why a module's call failed.
///
/// ```
/// use pg_outbox::DatabaseError;
///
/// fn advice(error: &DatabaseError) -> String {
///     match error {
///         DatabaseError::NotInstalled { module, .. } => format!("run `outbox-relay migrate --with {module}`"),
///         other => format!("roll back: {}", other.postgres()),
///     }
/// }
/// ```
#[cfg(feature = "_modules")]
#[derive(Debug, thiserror::Error)]
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
    /// The call needs an open transaction. No statement was sent. Only connections of sqlx and diesel can cause this error,
    /// because the types of other drivers rule it out.
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

#[cfg(feature = "_modules")]
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
