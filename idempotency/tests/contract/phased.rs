//! What the suite needs of a driver in addition to the suite of pg-outbox: phases, and errors with a verdict.

#![allow(unused_imports, unused_macros)] // no single driver uses all of them

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use pg_idempotency::idempotency::{Guard, PhaseError};
use pg_idempotency::retry::Classify;

use crate::drivers::{self, Connection};

pub trait Phased: Connection<Error: Classify> {
    /// Runs a phase whose work is one statement that returns a bigint.
    async fn phase(
        &mut self,
        guard: &mut Guard,
        name: &str,
        sql: &str,
    ) -> Result<i64, PhaseError<Self::Error>>;
}

type Done<C> = Result<i64, PhaseError<<C as Connection>::Error>>;

#[derive(QueryableByName)]
#[allow(dead_code)] // without diesel
struct Row {
    #[diesel(sql_type = BigInt)]
    id: i64,
}

#[cfg(feature = "tokio-postgres")]
impl Phased for tokio_postgres::Client {
    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
        let work = async |tx: &tokio_postgres::Transaction<'_>| tx.query_one(sql, &[]).await?.try_get(0);
        guard.phase(self, name, work).await
    }
}

#[cfg(feature = "deadpool-postgres")]
impl Phased for drivers::deadpool_postgres::Connection {
    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
        let work = async |tx: &deadpool_postgres::Transaction<'_>| tx.query_one(sql, &[]).await?.try_get(0);
        guard.phase(&mut self.0, name, work).await
    }
}

#[cfg(feature = "postgres")]
impl Phased for postgres::Client {
    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
        guard.phase_blocking(self, name, |tx| tx.query_one(sql, &[])?.try_get(0))
    }
}

/// Uses a pool, as applications do.
macro_rules! sqlx {
    ($sqlx:ident, $version:ident) => {
        impl Phased for $sqlx::PgConnection {
            async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
                let pool = $sqlx::PgPool::connect(&crate::database::url()).await.unwrap();
                let statement = drivers::sqlx::$version::statement(sql);
                let work =
                    async |tx: &mut $sqlx::PgConnection| $sqlx::query_scalar(statement).fetch_one(tx).await;
                let done = guard.phase(&pool, name, work).await;
                pool.close().await;
                done
            }
        }

        impl Phased for drivers::sqlx::$version::Connected {
            async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
                self.0.phase(guard, name, sql).await
            }
        }
    };
}

#[cfg(feature = "sqlx-08")]
sqlx!(sqlx_08, version_08);
#[cfg(feature = "sqlx-09")]
sqlx!(sqlx, version_09);

macro_rules! sea_orm {
    ($sea_orm:ident, $version:ident) => {
        impl Phased for $sea_orm::DatabaseConnection {
            async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
                let statement = $sea_orm::Statement::from_string($sea_orm::DbBackend::Postgres, sql);
                let work = async |tx: &$sea_orm::DatabaseTransaction| {
                    let row = drivers::sea_orm::$version::query_one(tx, statement).await?;
                    row.unwrap().try_get_by_index(0)
                };
                guard.phase(&*self, name, work).await
            }
        }
    };
}

#[cfg(feature = "sea-orm-1")]
sea_orm!(sea_orm_1, version_1);
#[cfg(feature = "sea-orm-2")]
sea_orm!(sea_orm, version_2);

macro_rules! diesel_async {
    ($diesel_async:ident) => {
        impl Phased for $diesel_async::AsyncPgConnection {
            async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
                let work = async |connection: &mut $diesel_async::AsyncPgConnection| {
                    let query = diesel::sql_query(sql);
                    let row = $diesel_async::RunQueryDsl::get_result::<Row>(query, connection).await;
                    row.map(|row| row.id)
                };
                guard.phase(self, name, work).await
            }
        }
    };
}

#[cfg(feature = "diesel-async-07")]
diesel_async!(diesel_async_07);
#[cfg(feature = "diesel-async-08")]
diesel_async!(diesel_async_08);
#[cfg(feature = "diesel-async-09")]
diesel_async!(diesel_async);

#[cfg(feature = "diesel")]
impl Phased for diesel::PgConnection {
    async fn phase(&mut self, guard: &mut Guard, name: &str, sql: &str) -> Done<Self> {
        guard.phase_blocking(self, name, |connection| {
            let row = diesel::RunQueryDsl::get_result::<Row>(diesel::sql_query(sql), connection);
            row.map(|row| row.id)
        })
    }
}
