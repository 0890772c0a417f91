use diesel::connection::{AnsiTransactionManager, TransactionManager};
use diesel::result::Error;
use diesel::sql_types::BigInt;
use diesel::{PgConnection, QueryableByName, RunQueryDsl};
use pg_outbox::idempotency::{Guard, PhaseError};
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

    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Result<i64, PhaseError<Error>> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = BigInt)]
            id: i64,
        }
        guard.phase_blocking(self, name, |connection| {
            diesel::sql_query(sql).get_result::<Row>(connection).map(|row| row.id)
        })
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
