//! Compiles only if the future of a phase can be spawned with every asynchronous driver, with a closure whose argument has no type,
//! and if the same generic function accepts every driver.

#![allow(dead_code)] // compiling is the test

use pg_idempotency::idempotency::{Guard, PhaseConnection, PhaseError};
use pg_idempotency::inbox;
use pg_outbox::{Error, Event, OutboxTransaction};

fn is_send(_: impl Send) {}

/// Calls can be spawned too, with every driver.
fn a_call_can_be_spawned(transaction: impl OutboxTransaction) {
    is_send(inbox::receive(transaction, "a", 1));
}

fn event() -> Event {
    Event::new("order", 1, "E").tombstone()
}

async fn announce<C: PhaseConnection>(guard: &mut Guard, connection: C) -> Result<(), PhaseError<Error>> {
    guard.phase(connection, "announced", async |tx| pg_outbox::enqueue(tx, event()).await.map(drop)).await
}

/// For drivers whose transaction is a shared reference.
#[allow(unused_macros)] // without a driver of this kind
macro_rules! shared {
    ($feature:literal, $module:ident, $connection:ty) => {
        #[cfg(feature = $feature)]
        mod $module {
            use super::*;

            fn can_be_spawned(guard: &mut Guard, connection: $connection) {
                is_send(guard.phase(connection, "one", async |tx| {
                    pg_outbox::enqueue(tx, event()).await?;
                    pg_outbox::enqueue(tx, event()).await.map(drop)
                }));
            }

            async fn is_accepted(guard: &mut Guard, connection: $connection) {
                let _ = announce(guard, connection).await;
            }
        }
    };
}

/// For drivers whose transaction is a unique reference.
#[allow(unused_macros)] // without a driver of this kind
macro_rules! unique {
    ($feature:literal, $module:ident, $connection:ty) => {
        #[cfg(feature = $feature)]
        mod $module {
            use super::*;

            fn can_be_spawned(guard: &mut Guard, connection: $connection) {
                is_send(guard.phase(connection, "one", async |tx| {
                    pg_outbox::enqueue(&mut *tx, event()).await?;
                    pg_outbox::enqueue(tx, event()).await.map(drop)
                }));
            }

            async fn is_accepted(guard: &mut Guard, connection: $connection) {
                let _ = announce(guard, connection).await;
            }
        }
    };
}

shared!("tokio-postgres", tokio_postgres, &mut ::tokio_postgres::Client);
shared!("deadpool-postgres", deadpool_postgres, &mut ::deadpool_postgres::Client);
shared!("sea-orm-1", sea_orm_1, &::sea_orm_1::DatabaseConnection);
shared!("sea-orm-2", sea_orm_2, &::sea_orm::DatabaseConnection);
unique!("sqlx-08", sqlx_08, &::sqlx_08::PgPool);
unique!("sqlx-09", sqlx_09, &::sqlx::PgPool);
unique!("diesel-async-07", diesel_async_07, &mut ::diesel_async_07::AsyncPgConnection);
unique!("diesel-async-08", diesel_async_08, &mut ::diesel_async_08::AsyncPgConnection);
unique!("diesel-async-09", diesel_async_09, &mut ::diesel_async::AsyncPgConnection);
