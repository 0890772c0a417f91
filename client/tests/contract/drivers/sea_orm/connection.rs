use pg_outbox::{OutboxClient, OutboxTransaction};

use super::execute;
use super::sea_orm::{ConnectOptions, Database, DatabaseConnection, DatabaseTransaction};
use super::sea_orm::{DbBackend, DbErr, Statement, TransactionTrait};
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
