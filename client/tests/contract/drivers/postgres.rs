use pg_outbox::idempotency::{Guard, PhaseError};
use pg_outbox::{OutboxClient, OutboxTransaction};
use postgres::{Client, Error, NoTls, Transaction};

use super::{Connection, Tx};

impl Connection for Client {
    type Tx<'c> = Transaction<'c>;
    type Error = Error;

    async fn connect(url: &str) -> Client {
        Client::connect(url, NoTls).unwrap()
    }

    async fn begin(&mut self) -> Transaction<'_> {
        self.transaction().unwrap()
    }

    fn client(&mut self) -> impl OutboxClient {
        self
    }

    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Result<i64, PhaseError<Error>> {
        guard.phase_blocking(self, name, |tx| tx.query_one(sql, &[])?.try_get(0))
    }
}

impl Tx for Transaction<'_> {
    type Error = Error;

    fn tx(&mut self) -> impl OutboxTransaction {
        self
    }

    async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        self.execute(sql, &[])
    }

    async fn commit(self) {
        self.commit().unwrap();
    }

    async fn rollback(self) {
        self.rollback().unwrap();
    }
}
