use pg_outbox::{OutboxClient, OutboxTransaction};

use super::sqlx::{self, Error, PgConnection, PgTransaction};
use super::statement;
use crate::drivers::{Connection, Tx};

impl Connection for PgConnection {
    type Tx<'c> = PgTransaction<'c>;
    type Error = Error;

    async fn connect(url: &str) -> PgConnection {
        <PgConnection as sqlx::Connection>::connect(url).await.unwrap()
    }

    async fn begin(&mut self) -> PgTransaction<'_> {
        sqlx::Connection::begin(self).await.unwrap()
    }

    fn client(&mut self) -> impl OutboxClient {
        self
    }
}

impl Tx for PgTransaction<'_> {
    type Error = Error;

    fn tx(&mut self) -> impl OutboxTransaction {
        self
    }

    async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        Ok(sqlx::query(statement(sql)).execute(&mut **self).await?.rows_affected())
    }

    async fn commit(self) {
        self.commit().await.unwrap();
    }

    async fn rollback(self) {
        self.rollback().await.unwrap();
    }
}

/// Enqueues through the connection of the transaction, as a function that takes `&mut PgConnection` does.
pub struct Connected(pub PgConnection);

pub struct OpenConnection<'c>(PgTransaction<'c>);

impl Connection for Connected {
    type Tx<'c> = OpenConnection<'c>;
    type Error = Error;

    async fn connect(url: &str) -> Connected {
        Connected(<PgConnection as Connection>::connect(url).await)
    }

    async fn begin(&mut self) -> OpenConnection<'_> {
        OpenConnection(Connection::begin(&mut self.0).await)
    }

    fn client(&mut self) -> impl OutboxClient {
        &mut self.0
    }
}

impl Tx for OpenConnection<'_> {
    type Error = Error;

    fn tx(&mut self) -> impl OutboxTransaction {
        &mut *self.0
    }

    async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        self.0.run(sql).await
    }

    async fn commit(self) {
        Tx::commit(self.0).await;
    }

    async fn rollback(self) {
        Tx::rollback(self.0).await;
    }
}
