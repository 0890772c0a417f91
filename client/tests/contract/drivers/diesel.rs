use diesel::connection::{AnsiTransactionManager, TransactionManager};
use diesel::result::Error;
use diesel::{PgConnection, RunQueryDsl};
use pg_outbox::{OutboxClient, OutboxTransaction};

use super::{Connection, Tx};

impl Connection for PgConnection {
    type Tx<'c> = Transaction<'c>;
    type Error = Error;

    async fn connect(url: &str) -> PgConnection {
        diesel::Connection::establish(url).unwrap()
    }

    /// Begins a transaction as `transaction(..)` does.
    async fn begin(&mut self) -> Transaction<'_> {
        AnsiTransactionManager::begin_transaction(self).unwrap();
        Transaction(self)
    }

    fn client(&mut self) -> impl OutboxClient {
        self
    }
}

/// A connection with an open transaction. diesel has no type for it.
pub struct Transaction<'c>(&'c mut PgConnection);

impl Tx for Transaction<'_> {
    type Error = Error;

    fn tx(&mut self) -> impl OutboxTransaction {
        &mut *self.0
    }

    async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        Ok(diesel::sql_query(sql).execute(self.0)? as u64)
    }

    async fn commit(self) {
        AnsiTransactionManager::commit_transaction(self.0).unwrap();
    }

    async fn rollback(self) {
        AnsiTransactionManager::rollback_transaction(self.0).unwrap();
    }
}
