//! The synchronous driver. Its calls block the thread, so the futures are ready when they are first polled.

use postgres::{Client, Transaction};

use super::tokio_postgres::{answers, typed};
use super::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
use crate::error::PostgresError;
use crate::statement::{Argument, Statement};

/// Statements are sent with their types, as with tokio-postgres.
macro_rules! typed {
    ($connection:ty, $is_in_transaction:literal) => {
        impl Driver for &mut $connection {
            fn is_in_transaction(&mut self) -> Result<bool, PostgresError> {
                Ok($is_in_transaction)
            }

            async fn rows(&mut self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
                answers(statement, &self.query_typed(statement.sql(), &typed(arguments))?)
            }

            async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
                Ok(self.execute_typed(sql, &typed(arguments))?)
            }
        }
    };
}

typed!(Transaction<'_>, true);
typed!(Client, false);

impl OutboxTransaction for &mut Transaction<'_> {}
impl OutboxClient for &mut Client {}
