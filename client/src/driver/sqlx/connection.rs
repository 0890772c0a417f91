use super::sqlx::postgres::{PgArguments, PgRow};
use super::sqlx::query::Query;
use super::sqlx::{self, PgConnection, PgExecutor, PgPool, Postgres, Transaction};
use super::sqlx::{Arguments, Connection, Row};
use super::statement;
use crate::call::{Answer, Argument, Call, Column, Kind};
use crate::driver::plain::{self, Plain};
use crate::driver::{Caller, Driver, OutboxClient, OutboxTransaction, failure};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

impl OutboxTransaction for &mut Transaction<'_, Postgres> {}

/// Its connection is checked too: when a nested `begin` fails or is cancelled, sqlx rolls back the outer transaction, whose
/// object remains.
impl Driver for &mut Transaction<'_, Postgres> {
    async fn insert(self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        Driver::insert(&mut **self, insert, events).await
    }

    async fn call(self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        Driver::call(&mut **self, call, arguments).await
    }
}

impl OutboxTransaction for &mut PgConnection {}

/// A connection may have no transaction. So each call checks whether sqlx has begun one, which costs no round trip. sqlx
/// caches prepared statements per connection.
impl Driver for &mut PgConnection {
    async fn insert(self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        in_transaction(self).map_err(|error| failure(insert, error))?;
        plain::insert(self, insert, events).await
    }

    async fn call(self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        in_transaction(self)?;
        self.rows(call, arguments).await
    }
}

/// sqlx does not track a BEGIN that was sent as SQL.
fn in_transaction(connection: &PgConnection) -> Result<(), PostgresError> {
    if connection.is_in_transaction() { Ok(()) } else { Err(PostgresError::no_transaction()) }
}

impl Plain for PgConnection {
    async fn rows(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        rows(self, call, arguments).await
    }

    async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Result<u64, PostgresError> {
        Ok(query(sql, arguments)?.execute(self).await?.rows_affected())
    }
}

impl OutboxClient for &PgPool {}

impl Caller for &PgPool {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        rows(*self, call, arguments).await
    }
}

impl OutboxClient for &mut PgConnection {}

impl Caller for &mut PgConnection {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        if self.is_in_transaction() {
            return Err(PostgresError::in_transaction());
        }
        rows(&mut **self, call, arguments).await
    }
}

async fn rows(
    executor: impl PgExecutor<'_>,
    call: &Call,
    arguments: &[Argument<'_>],
) -> Result<Vec<Answer>, PostgresError> {
    let rows = query(call.sql(), arguments)?.fetch_all(executor).await?;
    Ok(rows.iter().map(|row| answer(call, row)).collect::<Result<_, sqlx::Error>>()?)
}

fn query<'q>(
    sql: &'q str,
    arguments: &[Argument<'_>],
) -> Result<Query<'q, Postgres, PgArguments>, sqlx::Error> {
    let mut bound = PgArguments::default();
    for argument in arguments {
        let added = match *argument {
            Argument::Text(text) => bound.add(text),
            Argument::Texts(texts) => bound.add(texts),
            Argument::Bytes(bytes) => bound.add(bytes),
            Argument::ByteStrings(byte_strings) => bound.add(byte_strings),
            Argument::Flags(flags) => bound.add(flags),
            Argument::Seconds(seconds) => bound.add(seconds),
            Argument::Number(number) => bound.add(number),
        };
        added.map_err(sqlx::Error::Encode)?;
    }
    Ok(sqlx::query_with(statement(sql), bound))
}

pub fn answer(call: &Call, row: &PgRow) -> Result<Answer, sqlx::Error> {
    let columns = call.columns().iter().enumerate().map(|(index, kind)| column(row, index, *kind));
    Ok(Answer::new(columns.collect::<Result<_, sqlx::Error>>()?))
}

fn column(row: &PgRow, index: usize, kind: Kind) -> Result<Column, sqlx::Error> {
    Ok(match kind {
        Kind::Text => Column::Text(row.try_get(index)?),
        Kind::Bytes => Column::Bytes(row.try_get(index)?),
        Kind::Flag => Column::Flag(row.try_get(index)?),
        Kind::Flags => Column::Flags(row.try_get(index)?),
        Kind::Seconds => Column::Seconds(row.try_get(index)?),
        Kind::Number => Column::Number(row.try_get(index)?),
    })
}
