use deadpool_postgres::{Client, Manager, Pool, Transaction};
use pg_outbox::{OutboxClient, OutboxTransaction};
use tokio_postgres::{Error, NoTls};

use super::Tx;

/// The only connection of a pool.
pub struct Connection(pub Client);

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
