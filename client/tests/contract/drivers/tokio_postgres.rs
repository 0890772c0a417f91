use pg_outbox::idempotency::{Guard, PhaseError};
use pg_outbox::{OutboxClient, OutboxTransaction};
use tokio_postgres::{Client, Error, NoTls, Transaction};

use super::{Connection, Tx};

impl Connection for Client {
    type Tx<'c> = Transaction<'c>;
    type Error = Error;

    async fn connect(url: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn begin(&mut self) -> Transaction<'_> {
        self.transaction().await.unwrap()
    }

    fn client(&mut self) -> impl OutboxClient {
        &*self
    }

    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Result<i64, PhaseError<Error>> {
        let work = async |tx: &Transaction<'_>| tx.query_one(sql, &[]).await?.try_get(0);
        guard.phase(self, name, work).await
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
