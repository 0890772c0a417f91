use deadpool_postgres::{Client, Manager, Pool, Transaction};
use pg_outbox::idempotency::{Guard, PhaseError};
use pg_outbox::{OutboxClient, OutboxTransaction};
use tokio_postgres::{Error, NoTls};

use super::Tx;

/// The only connection of a pool.
pub struct Connection(Client);

impl super::Connection for Connection {
    type Tx<'c> = Transaction<'c>;
    type Error = Error;

    async fn connect(url: &str) -> Connection {
        let manager = Manager::new(url.parse().unwrap(), NoTls);
        Connection(Pool::builder(manager).max_size(1).build().unwrap().get().await.unwrap())
    }

    async fn begin(&mut self) -> Transaction<'_> {
        self.0.transaction().await.unwrap()
    }

    fn client(&mut self) -> impl OutboxClient {
        &self.0
    }

    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Result<i64, PhaseError<Error>> {
        let work = async |tx: &Transaction<'_>| tx.query_one(sql, &[]).await?.try_get(0);
        guard.phase(&mut self.0, name, work).await
    }
}

impl Tx for Transaction<'_> {
    type Error = Error;

    fn tx(&mut self) -> impl OutboxTransaction {
        &*self
    }

    async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        self.execute(sql, &[]).await
    }

    async fn commit(self) {
        self.commit().await.unwrap();
    }

    async fn rollback(self) {
        self.rollback().await.unwrap();
    }
}
