//! The transactions of the supported drivers.

#![allow(clippy::duplicate_mod)] // the versions of a driver share their source

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres;
#[cfg(feature = "_diesel")]
mod diesel;
#[cfg(feature = "_diesel-async")]
mod diesel_async;
#[cfg(feature = "diesel")]
mod diesel_blocking;
#[cfg(any(feature = "_sqlx", feature = "_diesel"))]
mod plain;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "_sea-orm")]
mod sea_orm;
#[cfg(feature = "_sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use std::future::Future;

use crate::call::{Answer, Argument, Call};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::Insert;

#[cfg(any(feature = "_sqlx", feature = "_diesel"))]
pub use plain::Statements as PlainStatements;

/// A reference to an open transaction:
///
/// | Feature | |
/// |---|---|
/// | `tokio-postgres` | `&tokio_postgres::Transaction` |
/// | `deadpool-postgres` | also `&deadpool_postgres::Transaction` |
/// | `postgres` (synchronous) | `&mut postgres::Transaction` |
/// | `sqlx` | `&mut sqlx::Transaction<Postgres>`; `&mut sqlx::PgConnection` with an open transaction |
/// | `sea-orm` | also `&sea_orm::DatabaseTransaction` |
/// | `diesel-async` | `&mut diesel_async::AsyncPgConnection`, within `transaction(..)` |
/// | `diesel` (synchronous) | `&mut diesel::PgConnection`, within `transaction(..)` |
///
/// With a feature for another version, such as `sqlx-08`, the types of that version implement it too.
///
/// Clients and pools do not implement it, because outside of a transaction the event and the change would not commit together.
/// If the type can also be a connection without a transaction, each call checks this at run time. The trait is sealed.
#[cfg_attr(feature = "tokio-postgres", doc = include_str!("driver/tokio_postgres.md"))]
#[cfg_attr(feature = "deadpool-postgres", doc = include_str!("driver/deadpool_postgres.md"))]
#[cfg_attr(feature = "postgres", doc = include_str!("driver/postgres.md"))]
#[cfg_attr(feature = "sqlx-09", doc = include_str!("driver/sqlx.md"))]
#[cfg_attr(feature = "sqlx-08", doc = include_str!("driver/sqlx_08.md"))]
#[cfg_attr(feature = "sea-orm-2", doc = include_str!("driver/sea_orm.md"))]
#[cfg_attr(feature = "sea-orm-1", doc = include_str!("driver/sea_orm_1.md"))]
#[cfg_attr(feature = "diesel-async-09", doc = include_str!("driver/diesel_async.md"))]
#[cfg_attr(
    any(feature = "diesel-async-07", feature = "diesel-async-08"),
    doc = include_str!("driver/diesel_async_08.md")
)]
#[cfg_attr(feature = "diesel", doc = include_str!("driver/diesel_blocking.md"))]
// Implemented on references, because some drivers need `&mut Transaction`.
#[cfg_attr(
    feature = "_driver",
    diagnostic::on_unimplemented(
        message = "`{Self}` is not a reference to an open transaction",
        label = "an event must be enqueued in the transaction of its change",
        note = "begin a transaction and pass `&tx`, or `&*tx` if it is a `tx: &mut Transaction`",
        note = "with sqlx, pass `&mut tx`; with diesel, pass the connection that `transaction(..)` provides",
        note = "the feature of the driver must be enabled, and its version must match: tokio-postgres 0.7, \
                deadpool-postgres 0.14, postgres 0.19, sqlx 0.9, sea-orm 2, diesel-async 0.9, diesel 2.3",
        note = "for earlier versions, the features are `sqlx-08`, `sea-orm-1`, `diesel-async-08` and `diesel-async-07`"
    )
)]
#[cfg_attr(
    not(feature = "_driver"),
    diagnostic::on_unimplemented(
        message = "pg-outbox needs the feature of a database driver, and none is enabled",
        label = "`{Self}` is not known to pg-outbox without its driver",
        note = "enable the feature of your driver in Cargo.toml: `tokio-postgres`, `deadpool-postgres`, `postgres`, `sqlx`, \
                `sea-orm`, `diesel-async` or `diesel`; or one for an earlier version, such as `sqlx-08`",
        note = "for example: pg-outbox = {{ version = \"0.1\", features = [\"tokio-postgres\"] }}"
    )
)]
pub trait OutboxTransaction: Driver {}

/// A reference to a connection without a transaction, or to a pool:
///
/// | Feature | |
/// |---|---|
/// | `tokio-postgres` | `&tokio_postgres::Client` |
/// | `deadpool-postgres` | also `&deadpool_postgres::Client` |
/// | `postgres` (synchronous) | `&mut postgres::Client` |
/// | `sqlx` | `&sqlx::PgPool`, `&mut sqlx::PgConnection` |
/// | `sea-orm` | also `&sea_orm::DatabaseConnection` |
/// | `diesel-async` | `&mut diesel_async::AsyncPgConnection` |
/// | `diesel` (synchronous) | `&mut diesel::PgConnection` |
///
/// With a feature for another version, such as `sqlx-08`, the types of that version implement it too.
///
/// A call through it commits immediately. Modules need that if other sessions must see the effect before the application's
/// transaction ends, as with the lock of an idempotency key. [`Outbox::check`](crate::Outbox::check) needs it because it is
/// not part of the transaction of a change. The trait is sealed.
///
/// A `PgConnection` or `AsyncPgConnection` with an open transaction causes an error with the SQLSTATE 25001. The error of a
/// module is `DatabaseError::InTransaction`.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(client: &tokio_postgres::Client) -> Result<(), pg_outbox::CheckError> {
/// pg_outbox::Outbox::default().check(client).await?; // with sqlx, `check(&pool)`
/// # Ok(()) }
/// # }
/// ```
#[cfg_attr(
    feature = "_driver",
    diagnostic::on_unimplemented(
        message = "`{Self}` is not a reference to a client",
        label = "this call commits by itself, before the transaction of the change begins",
        note = "pass `&client`, also for a client from a pool; with sqlx, pass `&pool` or `&mut *connection`",
        note = "the feature of the driver must be enabled, and its version must match: tokio-postgres 0.7, \
                deadpool-postgres 0.14, postgres 0.19, sqlx 0.9, sea-orm 2, diesel-async 0.9, diesel 2.3",
        note = "for earlier versions, the features are `sqlx-08`, `sea-orm-1`, `diesel-async-08` and `diesel-async-07`"
    )
)]
#[cfg_attr(
    not(feature = "_driver"),
    diagnostic::on_unimplemented(
        message = "pg-outbox needs the feature of a database driver, and none is enabled",
        label = "`{Self}` is not known to pg-outbox without its driver",
        note = "enable the feature of your driver in Cargo.toml: `tokio-postgres`, `deadpool-postgres`, `postgres`, `sqlx`, \
                `sea-orm`, `diesel-async` or `diesel`; or one for an earlier version, such as `sqlx-08`"
    )
)]
pub trait OutboxClient: Caller {}

/// The operations of a driver in a transaction. It is not exported, which seals [`OutboxTransaction`].
pub trait Driver: Send {
    /// Inserts one or more events, and returns the number of stored rows. Needs one round trip once it knows the table.
    fn insert(self, insert: &Insert, events: &[Event]) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Runs a statement in one round trip, and returns its rows.
    fn call(
        self,
        call: &Call,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Result<Vec<Answer>, PostgresError>> + Send;
}

/// The operations of a driver outside of a transaction. It is not exported, which seals [`OutboxClient`].
pub trait Caller: Send {
    /// Runs and commits a statement in one round trip, and returns its rows.
    fn call(
        &mut self,
        call: &Call,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Result<Vec<Answer>, PostgresError>> + Send;
}

fn failure(insert: &Insert, source: PostgresError) -> Error {
    let table = insert.table().to_owned();
    match source.sqlstate() {
        // Undefined table, or undefined schema.
        Some("42P01" | "3F000") => Error::NoOutbox { table, source },
        Some("25P01") => Error::NoTransaction { source },
        _ => Error::Postgres { table, source },
    }
}
