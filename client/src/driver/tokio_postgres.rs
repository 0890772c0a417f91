use std::error::Error as StdError;
use std::io;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Transaction};

use super::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
use crate::error::{Details, DriverError, WithoutSqlstate};
use crate::statement::{Argument, Column, Kind, Statement};

/// tokio-postgres does not cache prepared statements, and preparing one per call would double the round trips. So statements
/// are sent with the types of their parameters.
macro_rules! typed {
    ($connection:ty) => {
        impl Driver for &$connection {
            async fn rows(&mut self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
                answers(statement, &self.query_typed(&statement.sql, &typed(arguments)).await?)
            }

            async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
                Ok(self.execute_typed(sql, &typed(arguments)).await?)
            }
        }
    };
}

typed!(Transaction<'_>);
typed!(Client);

impl OutboxTransaction for &Transaction<'_> {}
impl OutboxClient for &Client {}

/// The arguments with their types, so that the statement need not be prepared.
pub(super) fn typed<'a>(arguments: &'a [Argument<'_>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let typed = arguments.iter().map(|argument| -> (&'a (dyn ToSql + Sync), Type) {
        match argument {
            Argument::Text(text) => (text, Type::TEXT),
            Argument::Texts(texts) => (texts, Type::TEXT_ARRAY),
            Argument::Bytes(bytes) => (bytes, Type::BYTEA),
            Argument::ByteStrings(byte_strings) => (byte_strings, Type::BYTEA_ARRAY),
            Argument::Flags(flags) => (flags, Type::BOOL_ARRAY),
            Argument::Seconds(seconds) => (seconds, Type::FLOAT8),
            Argument::Number(number) => (number, Type::INT4),
        }
    });
    typed.collect()
}

pub(super) fn answers(statement: &Statement, rows: &[Row]) -> Answers {
    let column = |row: &Row, index, kind| {
        Ok::<_, Error>(match kind {
            Kind::Text => Column::Text(row.try_get(index)?),
            Kind::Bytes => Column::Bytes(row.try_get(index)?),
            Kind::Flag => Column::Flag(row.try_get(index)?),
            Kind::Flags => Column::Flags(row.try_get(index)?),
            Kind::Seconds => Column::Seconds(row.try_get(index)?),
            Kind::Number => Column::Number(row.try_get(index)?),
        })
    };
    let answer = |row| statement.answer(|index, kind| column(row, index, kind));
    Ok(rows.iter().map(answer).collect::<Result<_, _>>()?)
}

impl DriverError for Error {
    fn details(&self) -> Details {
        let message = match (self.as_db_error(), self.source()) {
            (Some(answer), _) => answer.message().to_owned(),
            (None, Some(source)) => format!("{self}: {source}"),
            (None, None) => self.to_string(),
        };
        let is_io = <dyn StdError>::is::<io::Error>;
        // The driver does not expose the kind. In both cases, nothing was sent: there is no connection, or a value is invalid.
        let is = |kind| self.to_string().starts_with(kind);
        let is_lost = self.is_closed() || self.source().is_some_and(is_io);
        let without_sqlstate = if is("error connecting to server") {
            WithoutSqlstate::NoConnection
        } else if is_lost && !is("error encoding message to server") {
            WithoutSqlstate::ConnectionLost
        } else {
            WithoutSqlstate::Rejected
        };
        Details {
            sqlstate: self.code().map(SqlState::code).map(str::to_owned),
            message,
            constraint: self.as_db_error().and_then(|answer| answer.constraint()).map(str::to_owned),
            without_sqlstate,
        }
    }
}
