use pg_outbox::idempotency::{Guard, PhaseError};
use pg_outbox::{OutboxClient, OutboxTransaction};

use super::sea_orm::{ConnectOptions, Database, DatabaseConnection, DatabaseTransaction};
use super::sea_orm::{DbBackend, DbErr, Statement, TransactionTrait};
use super::{execute, query_one};
use crate::drivers::{Connection, Tx};

/// A pool of one connection.
impl Connection for DatabaseConnection {
    type Tx<'c> = DatabaseTransaction;
    type Error = DbErr;

    const IS_PINGED_BY_ITS_POOL: bool = true;

    async fn connect(url: &str) -> DatabaseConnection {
        let mut options = ConnectOptions::new(url);
        options.max_connections(1).test_before_acquire(false); // would add a ping
        Database::connect(options).await.unwrap()
    }

    async fn begin(&mut self) -> DatabaseTransaction {
        TransactionTrait::begin(self).await.unwrap()
    }

    fn client(&mut self) -> impl OutboxClient {
        &*self
    }

    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Result<i64, PhaseError<DbErr>> {
        let work = async |tx: &DatabaseTransaction| {
            let row = query_one(tx, Statement::from_string(DbBackend::Postgres, sql)).await?;
            row.unwrap().try_get_by_index(0)
        };
        guard.phase(&*self, name, work).await
    }
}

impl Tx for DatabaseTransaction {
    type Error = DbErr;

    fn tx(&mut self) -> impl OutboxTransaction {
        &*self
    }

    async fn run(&mut self, sql: &str) -> Result<u64, DbErr> {
        Ok(execute(self, Statement::from_string(DbBackend::Postgres, sql)).await?.rows_affected())
    }

    async fn commit(self) {
        self.commit().await.unwrap();
    }

    async fn rollback(self) {
        self.rollback().await.unwrap();
    }
}
