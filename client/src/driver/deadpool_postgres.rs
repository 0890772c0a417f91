use deadpool_postgres::{Client, Transaction};
use tokio_postgres::types::ToSql;

use super::tokio_postgres::{answers, typed};
use super::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
use crate::statement::{Argument, Statement};

/// deadpool-postgres caches prepared statements per connection. PostgreSQL stops planning a statement after a few uses.
macro_rules! cached {
    ($connection:ty) => {
        impl Driver for &$connection {
            async fn rows(&mut self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
                let prepared = self.prepare_cached(&statement.sql).await?;
                answers(statement, &self.query(&prepared, &values(arguments)).await?)
            }

            async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
                let prepared = self.prepare_cached(sql).await?;
                Ok((**self).execute(&prepared, &values(arguments)).await?)
            }
        }
    };
}

cached!(Transaction<'_>);
cached!(Client);

impl OutboxTransaction for &Transaction<'_> {}
impl OutboxClient for &Client {}

fn values<'a>(arguments: &'a [Argument<'_>]) -> Vec<&'a (dyn ToSql + Sync)> {
    typed(arguments).into_iter().map(|(value, _)| value).collect()
}
