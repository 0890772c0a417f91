use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error as PgError, Row as PgRow, Transaction};

use super::{Caller, OutboxClient};
use super::{Driver, OutboxTransaction, failure};
use crate::call::{Answer, Argument, Call, Column, Kind};
use crate::columns::{Columns, Row};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::{Insert, PayloadKind};

/// The position of the payload in the parameters of each statement.
const PAYLOAD_PARAMETER: usize = 4;

impl OutboxTransaction for &Transaction<'_> {}

/// tokio-postgres does not cache prepared statements, and preparing one per call would double the round trips. So statements
/// are sent with their types. The first call learns the type of the payload column.
impl Driver for &Transaction<'_> {
    async fn insert(self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        let payload = match insert.known_payload() {
            Some(payload) => payload,
            None => {
                let statement =
                    self.prepare(insert.one()).await.map_err(|error| failure(insert, error.into()))?;
                insert.learn_payload(payload_type(statement.params()))?
            }
        };
        let inserted = match events {
            [event] => {
                let row = Row::of(event);
                execute(self, insert.one(), row.parameters(), one_types(payload)).await
            }
            _ => {
                let columns = Columns::of(events);
                execute(self, insert.many(payload), columns.parameters(), many_types(payload)).await
            }
        };
        inserted.map_err(|error| {
            if is_stale(&error) {
                insert.forget_payload();
            }
            failure(insert, error.into())
        })
    }

    async fn call(self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        Ok(answers(call, &self.query_typed(call.sql(), &typed(arguments)).await?)?)
    }
}

/// The type of the payload parameter of the prepared statement that inserts one event.
pub(super) fn payload_type(parameters: &[Type]) -> &str {
    parameters.get(PAYLOAD_PARAMETER).map_or("unknown", Type::name)
}

/// Whether the type of the payload column has changed since the statement was created.
pub(super) fn is_stale(error: &PgError) -> bool {
    error.code() == Some(&SqlState::DATATYPE_MISMATCH)
}

async fn execute(
    transaction: &Transaction<'_>,
    statement: &str,
    parameters: [&(dyn ToSql + Sync); 6],
    types: [Type; 6],
) -> Result<u64, PgError> {
    let mut types = types.into_iter();
    let typed = parameters.map(|parameter| (parameter, types.next().expect("as many types as parameters")));
    transaction.execute_typed(statement, &typed).await
}

pub(super) fn one_types(payload: PayloadKind) -> [Type; 6] {
    let payload = match payload {
        PayloadKind::Json => Type::JSON,
        PayloadKind::Bytea => Type::BYTEA,
    };
    [Type::UUID, Type::TEXT, Type::TEXT, Type::TEXT, payload, Type::JSONB]
}

pub(super) fn many_types(payload: PayloadKind) -> [Type; 6] {
    let payload = match payload {
        PayloadKind::Json => Type::JSON_ARRAY,
        PayloadKind::Bytea => Type::BYTEA_ARRAY,
    };
    [Type::UUID_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, payload, Type::JSONB_ARRAY]
}

impl OutboxClient for &Client {}

impl Caller for &Client {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        Ok(answers(call, &self.query_typed(call.sql(), &typed(arguments)).await?)?)
    }
}

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

pub(super) fn answers(call: &Call, rows: &[PgRow]) -> Result<Vec<Answer>, PgError> {
    rows.iter().map(|row| answer(call, row)).collect()
}

fn answer(call: &Call, row: &PgRow) -> Result<Answer, PgError> {
    let column = |(index, kind): (usize, &Kind)| {
        Ok(match kind {
            Kind::Text => Column::Text(row.try_get(index)?),
            Kind::Bytes => Column::Bytes(row.try_get(index)?),
            Kind::Flag => Column::Flag(row.try_get(index)?),
            Kind::Flags => Column::Flags(row.try_get(index)?),
            Kind::Seconds => Column::Seconds(row.try_get(index)?),
            Kind::Number => Column::Number(row.try_get(index)?),
        })
    };
    Ok(Answer::new(call.columns().iter().enumerate().map(column).collect::<Result<_, _>>()?))
}
