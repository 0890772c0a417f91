use pg_outbox::idempotency::{Guard, PhaseError};
use pg_outbox::{OutboxClient, OutboxTransaction};
use sqlx::{AssertSqlSafe, Error, PgConnection, PgPool, PgTransaction};

use super::{Connection, Tx};

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

    /// Uses a pool, as applications do.
    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Result<i64, PhaseError<Error>> {
        let pool = PgPool::connect(&crate::database::url()).await.unwrap();
        let work = async |tx: &mut PgTransaction<'_>| {
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut **tx).await
        };
        let done = guard.phase_sqlx(&pool, name, work).await;
        pool.close().await;
        done
    }
}

impl Tx for PgTransaction<'_> {
    type Error = Error;

    fn tx(&mut self) -> impl OutboxTransaction {
        self
    }

    async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        Ok(sqlx::query(AssertSqlSafe(sql)).execute(&mut **self).await?.rows_affected())
    }

    async fn commit(self) {
        self.commit().await.unwrap();
    }

    async fn rollback(self) {
        self.rollback().await.unwrap();
    }
}
