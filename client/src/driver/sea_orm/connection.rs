use super::sea_orm::sea_query::ArrayType;
use super::sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction};
use super::sea_orm::{DbBackend, DbErr, Statement, Value};
use super::{answer, execute, query_all};
use crate::call::{Answer, Argument, Call};
use crate::driver::plain::{self, Plain};
use crate::driver::{Caller, Driver, OutboxClient, OutboxTransaction};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

impl OutboxTransaction for &DatabaseTransaction {}

/// sea-orm uses sqlx, which caches prepared statements per connection.
impl Driver for &DatabaseTransaction {
    async fn insert(mut self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        plain::insert(&mut self, insert, events).await
    }

    async fn call(self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        rows(self, call, arguments).await
    }
}

impl Plain for &DatabaseTransaction {
    async fn rows(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        rows(*self, call, arguments).await
    }

    async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Result<u64, PostgresError> {
        Ok(execute(*self, statement(*self, sql, arguments)?).await?.rows_affected())
    }
}

impl OutboxClient for &DatabaseConnection {}

impl Caller for &DatabaseConnection {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        rows(*self, call, arguments).await
    }
}

async fn rows(
    connection: &impl ConnectionTrait,
    call: &Call,
    arguments: &[Argument<'_>],
) -> Result<Vec<Answer>, PostgresError> {
    let rows = query_all(connection, statement(connection, call.sql(), arguments)?).await?;
    let rows = rows.iter().map(|row| {
        let row =
            row.try_as_pg_row().ok_or_else(|| DbErr::Custom("the row is not a PostgreSQL row".to_owned()))?;
        answer(call, row).map_err(PostgresError::from)
    });
    rows.collect()
}

/// Checks the database, because the types of sea-orm do not distinguish databases.
fn statement(
    connection: &impl ConnectionTrait,
    sql: &str,
    arguments: &[Argument<'_>],
) -> Result<Statement, PostgresError> {
    let backend = connection.get_database_backend();
    if backend != DbBackend::Postgres {
        return Err(PostgresError::detected(
            "0A000",
            "the sea-orm connection is not a PostgreSQL connection",
        ));
    }
    Ok(Statement::from_sql_and_values(backend, sql, arguments.iter().map(value)))
}

fn value(argument: &Argument<'_>) -> Value {
    let array = |kind, values: Vec<Value>| Value::Array(kind, Some(Box::new(values)));
    match *argument {
        Argument::Text(text) => Value::from(text),
        Argument::Texts(texts) => {
            array(ArrayType::String, texts.iter().map(|text| Value::from(*text)).collect())
        }
        Argument::Bytes(bytes) => Value::from(bytes.map(<[u8]>::to_vec)),
        Argument::ByteStrings(byte_strings) => {
            array(ArrayType::Bytes, byte_strings.iter().map(|bytes| Value::from(*bytes)).collect())
        }
        Argument::Flags(flags) => {
            array(ArrayType::Bool, flags.iter().map(|flag| Value::from(*flag)).collect())
        }
        Argument::Seconds(seconds) => Value::from(seconds),
        Argument::Number(number) => Value::from(number),
    }
}
