use deadpool_postgres::Client;
use deadpool_postgres::Transaction;
use tokio_postgres::Error as PgError;
use tokio_postgres::types::ToSql;

use super::tokio_postgres::{answers, is_stale, payload_type, typed};
use super::{Caller, OutboxClient};
use super::{Driver, OutboxTransaction, failure};
use crate::call::{Answer, Argument, Call};
use crate::columns::{Columns, Row};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

impl OutboxTransaction for &Transaction<'_> {}

/// deadpool-postgres caches prepared statements per connection. PostgreSQL stops planning a statement after a few uses.
impl Driver for &Transaction<'_> {
    async fn insert(self, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
        let failed = |statement: &str, error: PgError| {
            if is_stale(&error) {
                self.statement_cache.remove(insert.one(), &[]);
                self.statement_cache.remove(statement, &[]);
            }
            failure(insert, error.into())
        };
        let one = self.prepare_cached(insert.one()).await.map_err(|error| failed(insert.one(), error))?;
        // This also detects problems of the table before a failed statement aborts the transaction.
        let payload = insert.learn_payload(payload_type(one.params()))?;
        if let [event] = events {
            let row = Row::of(event);
            return self.execute(&one, &row.parameters()).await.map_err(|error| failed(insert.one(), error));
        }
        let text = insert.many(payload);
        let many = self.prepare_cached(text).await.map_err(|error| failed(text, error))?;
        let columns = Columns::of(events);
        self.execute(&many, &columns.parameters()).await.map_err(|error| failed(text, error))
    }

    async fn call(self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        let statement = self.prepare_cached(call.sql()).await?;
        Ok(answers(call, &self.query(&statement, &values(arguments)).await?)?)
    }
}

impl OutboxClient for &Client {}

impl Caller for &Client {
    async fn call(&mut self, call: &Call, arguments: &[Argument<'_>]) -> Result<Vec<Answer>, PostgresError> {
        let statement = self.prepare_cached(call.sql()).await?;
        Ok(answers(call, &self.query(&statement, &values(arguments)).await?)?)
    }
}

fn values<'a>(arguments: &'a [Argument<'_>]) -> Vec<&'a (dyn ToSql + Sync)> {
    typed(arguments).into_iter().map(|(value, _)| value).collect()
}
