use diesel::QueryResult;
use futures_util::TryStreamExt;

use super::diesel_async::{
    AnsiTransactionManager, AsyncConnectionCore, AsyncPgConnection, TransactionManager,
};
use crate::call::{Answer, Argument, Call};
use crate::driver::diesel::{Statement, answer};
use crate::driver::plain::{self, Plain};
use crate::driver::{Caller, Driver, OutboxClient, OutboxTransaction, failure};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

impl OutboxTransaction for &mut AsyncPgConnection {}

/// diesel has no type for a transaction: its closure receives the connection. So each call checks whether diesel has an open
/// transaction, which costs no round trip. diesel caches prepared statements per connection.
impl Driver for &mut AsyncPgConnection {
    async fn insert(self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        in_transaction(self).map_err(|error| failure(insert, error))?;
        plain::insert(self, insert, events).await
    }

    async fn call(self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        in_transaction(self)?;
        self.rows(call, arguments).await
    }
}

impl OutboxClient for &mut AsyncPgConnection {}

impl Caller for &mut AsyncPgConnection {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        outside_transaction(self)?;
        self.rows(call, arguments).await
    }
}

fn in_transaction(connection: &mut AsyncPgConnection) -> Result<(), PostgresError> {
    if is_in_transaction(connection)? {
        return Ok(());
    }
    Err(PostgresError::no_transaction())
}

fn outside_transaction(connection: &mut AsyncPgConnection) -> Result<(), PostgresError> {
    if is_in_transaction(connection)? {
        return Err(PostgresError::in_transaction());
    }
    Ok(())
}

/// diesel does not track a BEGIN that was sent as SQL.
fn is_in_transaction(connection: &mut AsyncPgConnection) -> QueryResult<bool> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
    Ok(status.transaction_depth()?.is_some())
}

impl Plain for AsyncPgConnection {
    async fn rows(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        let loading = self.load(Statement::new(call.sql(), arguments));
        let rows: Vec<_> = loading.await?.try_collect().await?;
        Ok(rows.iter().map(|row| answer(call, row)).collect::<QueryResult<_>>()?)
    }

    async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Result<u64, PostgresError> {
        let executing = self.execute_returning_count(Statement::new(sql, arguments));
        Ok(executing.await? as u64)
    }
}
