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
