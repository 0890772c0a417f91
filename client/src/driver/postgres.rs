//! The synchronous driver. Its calls block the thread, so the futures are ready when they are first polled.

use postgres::{Client, Transaction};

use super::tokio_postgres::{answers, typed};
use super::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
use crate::statement::{Argument, Statement};

/// Statements are sent with their types, as with tokio-postgres.
macro_rules! typed {
    ($connection:ty) => {
        impl Driver for &mut $connection {
            async fn rows(&mut self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
                answers(statement, &self.query_typed(&statement.sql, &typed(arguments))?)
            }

            async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
                Ok(self.execute_typed(sql, &typed(arguments))?)
            }
        }
    };
}

typed!(Transaction<'_>);
typed!(Client);

impl OutboxTransaction for &mut Transaction<'_> {}
impl OutboxClient for &mut Client {}
