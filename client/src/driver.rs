//! The transactions of the supported drivers.

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres;
#[cfg(feature = "diesel-async")]
mod diesel_async;
#[cfg(any(feature = "sqlx", feature = "diesel-async"))]
mod plain;
#[cfg(feature = "sea-orm")]
mod sea_orm;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use std::future::Future;

use crate::call::{Answer, Argument, Call};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

#[cfg(all(feature = "diesel-async", feature = "idempotency"))]
pub use diesel_async::outside_transaction;
#[cfg(any(feature = "sqlx", feature = "diesel-async"))]
pub use plain::Statements as PlainStatements;

/// A reference to an open transaction, by the driver's feature:
///
/// | Feature | |
/// |---|---|
/// | `tokio-postgres` | `&tokio_postgres::Transaction` |
/// | `deadpool-postgres` | also `&deadpool_postgres::Transaction` |
/// | `sqlx` | `&mut sqlx::Transaction<Postgres>` |
/// | `sea-orm` | also `&sea_orm::DatabaseTransaction` |
/// | `diesel-async` | `&mut diesel_async::AsyncPgConnection`, within `transaction(..)` |
///
/// A client or a pool is none: outside a transaction the event and the change that it announces would not
/// commit together. The trait is sealed; this crate implements it, a driver a feature.
#[cfg_attr(feature = "tokio-postgres", doc = include_str!("driver/tokio_postgres.md"))]
#[cfg_attr(feature = "deadpool-postgres", doc = include_str!("driver/deadpool_postgres.md"))]
#[cfg_attr(feature = "sqlx", doc = include_str!("driver/sqlx.md"))]
#[cfg_attr(feature = "sea-orm", doc = include_str!("driver/sea_orm.md"))]
#[cfg_attr(feature = "diesel-async", doc = include_str!("driver/diesel_async.md"))]
// On references, so that a driver whose statements need `&mut Transaction` fits too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reference to an open transaction",
    label = "an event is enqueued in the transaction of the change that it announces",
    note = "begin a transaction and pass `&tx`; of a `tx: &mut Transaction` pass `&*tx`",
    note = "with sqlx pass `&mut tx`, not `&mut *tx`; with diesel the connection that `transaction(..)` hands out"
)]
pub trait OutboxTransaction: Driver {}

/// A reference to a connection outside a transaction, or to a pool of them, by the driver's feature:
///
/// | Feature | |
/// |---|---|
/// | `tokio-postgres` | `&tokio_postgres::Client` |
/// | `deadpool-postgres` | also `&deadpool_postgres::Client` |
/// | `sqlx` | `&sqlx::PgPool`, `&mut sqlx::PgConnection` |
/// | `sea-orm` | also `&sea_orm::DatabaseConnection` |
/// | `diesel-async` | `&mut diesel_async::AsyncPgConnection` |
///
/// What a call does through it is committed at once. Modules ask for one where others have to see the effect
/// before the application's own transaction ends, such as the lock of an idempotency key. The trait is sealed.
///
/// A `PgConnection` or an `AsyncPgConnection` on which a transaction was begun is refused with
/// [`DatabaseError::InTransaction`](crate::DatabaseError::InTransaction).
#[cfg(feature = "_modules")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reference to a client",
    label = "this is committed by itself, before the transaction of the change begins",
    note = "of a client from a pool pass `&client`; with sqlx pass `&pool` or `&mut *connection`"
)]
pub trait OutboxClient: Caller {}

/// What a driver does in a transaction; unnameable outside, which seals [`OutboxTransaction`].
pub trait Driver: Send {
    /// Inserts the events, at least one, in one round trip once it knows the table, and counts the rows.
    fn insert(self, insert: &Insert, events: &[Event]) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Runs a statement in one round trip, and reads its rows.
    fn call(
        self,
        call: &Call,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Result<Vec<Answer>, PostgresError>> + Send;
}

/// What a driver does outside of a transaction; unnameable outside, which seals [`OutboxClient`].
#[cfg(feature = "_modules")]
pub trait Caller: Send {
    /// Runs a statement in one round trip and commits it, and reads its rows.
    fn call(
        self,
        call: &Call,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Result<Vec<Answer>, PostgresError>> + Send;
}

fn failure(insert: &Insert, source: PostgresError) -> Error {
    let table = insert.table().to_owned();
    match source.sqlstate() {
        // An unknown table, an unknown schema.
        Some("42P01" | "3F000") => Error::NoOutbox { table, source },
        Some("25P01") => Error::NoTransaction { source },
        _ => Error::Postgres { table, source },
    }
}
