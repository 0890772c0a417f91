use diesel::result::Error;
use pg_outbox::{OutboxClient, OutboxTransaction};

use super::diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};
use super::diesel_async::{AsyncConnection, RunQueryDsl};
use crate::drivers::{Connection, Tx};

impl Connection for AsyncPgConnection {
    type Tx<'c> = Transaction<'c>;
    type Error = Error;

    async fn connect(url: &str) -> AsyncPgConnection {
        AsyncPgConnection::establish(url).await.unwrap()
    }

    /// Begins a transaction as `transaction(..)` does.
    async fn begin(&mut self) -> Transaction<'_> {
        AnsiTransactionManager::begin_transaction(self).await.unwrap();
        Transaction(self)
    }

    fn client(&mut self) -> impl OutboxClient {
        self
    }
}

/// A connection with an open transaction. diesel has no type for it.
pub struct Transaction<'c>(&'c mut AsyncPgConnection);

impl Tx for Transaction<'_> {
    type Error = Error;

    fn tx(&mut self) -> impl OutboxTransaction {
        &mut *self.0
    }

    async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        Ok(diesel::sql_query(sql).execute(self.0).await? as u64)
    }

    async fn commit(self) {
        AnsiTransactionManager::commit_transaction(self.0).await.unwrap();
    }

    async fn rollback(self) {
        AnsiTransactionManager::rollback_transaction(self.0).await.unwrap();
    }
}
