//! Statements: what travels there and back, whatever the driver.

#[cfg(feature = "_modules")]
use crate::error::PostgresError;
#[cfg(feature = "_modules")]
use crate::table::{TableNameError, quoted_schema};

/// A statement, mostly one that calls a function, with what its columns hold. Its parameters stand in it in their order,
/// each once.
#[derive(Debug)]
pub struct Call {
    sql: String,
    columns: &'static [Kind],
}

/// What a parameter holds.
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

/// What a column is to hold.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    Bytes,
    Flag,
    Flags,
    Seconds,
    Number,
}

/// What a column holds.
#[derive(Debug)]
pub enum Column {
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Flag(bool),
    Flags(Vec<bool>),
    Seconds(Option<f64>),
    Number(Option<i32>),
}

/// The columns of a row, read one after the other as the [`Call`] lists them.
#[derive(Debug)]
pub struct Answer(std::vec::IntoIter<Column>);

impl Call {
    /// The functions stand in the SQL as `{schema}.name`.
    #[cfg(feature = "_modules")]
    pub fn new(schema: &Schema, sql: &str, columns: &'static [Kind]) -> Call {
        Call { sql: sql.replace("{schema}", &schema.0), columns }
    }

    /// Any statement.
    pub fn of(sql: String, columns: &'static [Kind]) -> Call {
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

    /// Where the modules are if nobody says otherwise.
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
            other => unreachable!("text is not what the call lists: {other:?}"),
        }
    }

    pub fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next() {
            Some(Column::Bytes(bytes)) => bytes,
            other => unreachable!("bytes are not what the call lists: {other:?}"),
        }
    }

    pub fn flag(&mut self) -> bool {
        match self.0.next() {
            Some(Column::Flag(flag)) => flag,
            other => unreachable!("a flag is not what the call lists: {other:?}"),
        }
    }

    pub fn flags(&mut self) -> Vec<bool> {
        match self.0.next() {
            Some(Column::Flags(flags)) => flags,
            other => unreachable!("flags are not what the call lists: {other:?}"),
        }
    }

    pub fn seconds(&mut self) -> Option<f64> {
        match self.0.next() {
            Some(Column::Seconds(seconds)) => seconds,
            other => unreachable!("seconds are not what the call lists: {other:?}"),
        }
    }

    pub fn number(&mut self) -> Option<i32> {
        match self.0.next() {
            Some(Column::Number(number)) => number,
            other => unreachable!("a number is not what the call lists: {other:?}"),
        }
    }
}

/// Why a module's call failed.
#[cfg(feature = "_modules")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The module's tables and functions are not in this schema of this database.
    #[error(
        "the module {module} is not in this database: make it with `outbox-relay migrate --with {module}`"
    )]
    NotInstalled {
        /// Which module.
        module: &'static str,
        /// What Postgres said.
        source: PostgresError,
    },
    /// The call is a part of a transaction, and the connection has none open. Found before Postgres was asked anything.
    /// Only diesel, which has no type for transactions, can get here.
    #[error("the call of the module {module} needs an open transaction: make it within `transaction(..)`")]
    NoTransaction {
        /// Which module.
        module: &'static str,
        /// SQLSTATE 25P01, as Postgres would say it.
        source: PostgresError,
    },
    /// The call is to be committed at once, and the connection has a transaction open. Found before Postgres was asked
    /// anything. Only drivers whose connection is not locked up by its transaction can get here.
    #[error("the call of the module {module} is committed by itself, so no transaction may be open")]
    InTransaction {
        /// Which module.
        module: &'static str,
        /// SQLSTATE 25001, as Postgres would say it.
        source: PostgresError,
    },
    /// Postgres refused the call or is out of reach. Roll back; [`PostgresError::sqlstate`] says whether to
    /// try again.
    #[error("the call of the module {module} failed")]
    Postgres {
        /// Which module.
        module: &'static str,
        /// What Postgres said.
        source: PostgresError,
    },
}

#[cfg(feature = "_modules")]
impl DatabaseError {
    pub(crate) fn new(module: &'static str, source: PostgresError) -> DatabaseError {
        match source.sqlstate() {
            // An unknown function, an unknown schema.
            Some("42883" | "3F000") => DatabaseError::NotInstalled { module, source },
            Some("25P01") => DatabaseError::NoTransaction { module, source },
            Some("25001") => DatabaseError::InTransaction { module, source },
            _ => DatabaseError::Postgres { module, source },
        }
    }

    /// What Postgres said.
    pub fn postgres(&self) -> &PostgresError {
        match self {
            DatabaseError::NotInstalled { source, .. }
            | DatabaseError::NoTransaction { source, .. }
            | DatabaseError::InTransaction { source, .. }
            | DatabaseError::Postgres { source, .. } => source,
        }
    }
}
