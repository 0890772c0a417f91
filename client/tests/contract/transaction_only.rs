//! Compiles only if transactions are the only `OutboxTransaction`s, clients are the only `OutboxClient`s, and the futures
//! can be spawned. A connection of sqlx or diesel can be both, so the crate checks it at run time.
//!
//! The `compile_fail` examples in the documentation of the traits do not test this: stable rustdoc accepts any error.

#![allow(dead_code)] // compiling is the test

use pg_outbox::{Event, OutboxClient, OutboxTransaction};

fn is_transaction<T: OutboxTransaction>() {}
fn is_client<T: OutboxClient>() {}

/// If both implementations apply to a type, `some_item` is ambiguous and does not compile.
trait NotATransaction<Marker> {
    fn some_item() {}
}
impl<T> NotATransaction<()> for T {}
impl<T: OutboxTransaction> NotATransaction<u8> for T {}

trait NotAClient<Marker> {
    fn some_item() {}
}
impl<T> NotAClient<()> for T {}
impl<T: OutboxClient> NotAClient<u8> for T {}

fn is_send(_: impl Send) {}

fn can_be_spawned(transaction: impl OutboxTransaction, batch: impl OutboxTransaction) {
    let event_of = || Event::new("order", 1, "E").tombstone();
    is_send(pg_outbox::enqueue(transaction, event_of()));
    is_send(pg_outbox::enqueue_many(batch, vec![event_of()]));
}

/// The same for each version of sqlx.
#[cfg(feature = "_sqlx")]
macro_rules! sqlx {
    ($version:ident, $sqlx:ident) => {
        mod $version {
            use ::$sqlx::pool::PoolConnection;
            use ::$sqlx::{PgConnection, PgPool, PgTransaction, Postgres};

            use super::*;

            fn types() {
                is_transaction::<&mut PgTransaction<'_>>();
                is_transaction::<&mut PgConnection>();
                <&PgConnection as NotATransaction<_>>::some_item();
                <&mut PoolConnection<Postgres> as NotATransaction<_>>::some_item();
                <&PgPool as NotATransaction<_>>::some_item();
                is_client::<&PgPool>();
                is_client::<&mut PgConnection>();
                <&mut PgTransaction<'_> as NotAClient<_>>::some_item();
            }

            fn futures(tx: &mut PgTransaction<'_>) {
                is_send(pg_outbox::enqueue(&mut *tx, Event::new("order", 1, "E").tombstone()));
                is_send(pg_outbox::enqueue(&mut **tx, Event::new("order", 1, "E").tombstone()));
            }
        }
    };
}

#[cfg(feature = "sqlx-08")]
sqlx!(sqlx_08, sqlx_08);
#[cfg(feature = "sqlx-09")]
sqlx!(sqlx_09, sqlx);

#[cfg(feature = "postgres")]
fn postgres(tx: &mut postgres::Transaction<'_>) {
    use postgres::{Client, Transaction};
    is_transaction::<&mut Transaction<'_>>();
    <&mut Client as NotATransaction<_>>::some_item();
    is_client::<&mut Client>();
    <&mut Transaction<'_> as NotAClient<_>>::some_item();
    is_send(pg_outbox::enqueue(&mut *tx, Event::new("order", 1, "E").tombstone()));
}

/// The same for each version of sea-orm.
#[cfg(feature = "_sea-orm")]
macro_rules! sea_orm {
    ($version:ident, $sea_orm:ident) => {
        mod $version {
            use ::$sea_orm::{DatabaseConnection, DatabaseTransaction};

            use super::*;

            fn types(tx: &DatabaseTransaction) {
                is_transaction::<&DatabaseTransaction>();
                <&DatabaseConnection as NotATransaction<_>>::some_item();
                is_client::<&DatabaseConnection>();
                <&DatabaseTransaction as NotAClient<_>>::some_item();
                is_send(pg_outbox::enqueue(tx, Event::new("order", 1, "E").tombstone()));
            }
        }
    };
}

#[cfg(feature = "sea-orm-1")]
sea_orm!(sea_orm_1, sea_orm_1);
#[cfg(feature = "sea-orm-2")]
sea_orm!(sea_orm_2, sea_orm);

#[cfg(feature = "diesel")]
fn diesel(connection: &mut diesel::PgConnection) {
    use diesel::PgConnection;
    is_transaction::<&mut PgConnection>();
    <&PgConnection as NotATransaction<_>>::some_item();
    is_client::<&mut PgConnection>();
    is_send(pg_outbox::enqueue(&mut *connection, Event::new("order", 1, "E").tombstone()));
}

/// The same for each version of diesel-async.
#[cfg(feature = "_diesel-async")]
macro_rules! diesel_async {
    ($version:ident, $diesel_async:ident) => {
        mod $version {
            use ::$diesel_async::AsyncPgConnection;

            use super::*;

            fn types(connection: &mut AsyncPgConnection) {
                is_transaction::<&mut AsyncPgConnection>();
                <&AsyncPgConnection as NotATransaction<_>>::some_item();
                is_client::<&mut AsyncPgConnection>();
                is_send(pg_outbox::enqueue(&mut *connection, Event::new("order", 1, "E").tombstone()));
            }
        }
    };
}

#[cfg(feature = "diesel-async-07")]
diesel_async!(diesel_async_07, diesel_async_07);
#[cfg(feature = "diesel-async-08")]
diesel_async!(diesel_async_08, diesel_async_08);
#[cfg(feature = "diesel-async-09")]
diesel_async!(diesel_async_09, diesel_async);
