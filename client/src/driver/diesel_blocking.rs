//! The synchronous connection of diesel. Its calls block the thread, so the futures are ready when they are first polled.

use diesel::connection::{
    AnsiTransactionManager, Connection, DefaultLoadingMode, LoadConnection, TransactionManager,
};
use diesel::{PgConnection, QueryResult};

use super::diesel::{Statement, answer};
use super::plain::{self, Plain};
use super::{Caller, OutboxClient};
use super::{Driver, OutboxTransaction, failure};
use crate::call::{Answer, Argument, Call};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

impl OutboxTransaction for &mut PgConnection {}

/// diesel has no type for a transaction, so each call checks whether diesel has an open one, as with diesel-async.
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

impl OutboxClient for &mut PgConnection {}

impl Caller for &mut PgConnection {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        outside_transaction(self)?;
        self.rows(call, arguments).await
    }
}

fn in_transaction(connection: &mut PgConnection) -> Result<(), PostgresError> {
    if is_in_transaction(connection)? { Ok(()) } else { Err(PostgresError::no_transaction()) }
}

fn outside_transaction(connection: &mut PgConnection) -> Result<(), PostgresError> {
    if is_in_transaction(connection)? { Err(PostgresError::in_transaction()) } else { Ok(()) }
}

/// diesel does not track a BEGIN that was sent as SQL.
fn is_in_transaction(connection: &mut PgConnection) -> QueryResult<bool> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
    Ok(status.transaction_depth()?.is_some())
}

impl Plain for PgConnection {
    async fn rows(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        let rows = LoadConnection::<DefaultLoadingMode>::load(self, Statement::new(call.sql(), arguments))?;
        Ok(rows.map(|row| answer(call, &row?)).collect::<QueryResult<_>>()?)
    }

    async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Result<u64, PostgresError> {
        Ok(self.execute_returning_count(&Statement::new(sql, arguments))? as u64)
    }
}
