//! The transactions and connections of the supported drivers.

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres;
#[cfg(feature = "_diesel")]
mod diesel;
#[cfg(feature = "_diesel-async")]
mod diesel_async;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "_sea-orm")]
mod sea_orm;
#[cfg(feature = "_sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use std::future::Future;

use crate::error::PostgresError;
use crate::statement::{Answer, Argument, Statement};

type Answers = Result<Vec<Answer>, PostgresError>;
/// The number of changed rows.
type Changes = Result<u64, PostgresError>;

/// A reference to an open transaction:
///
/// | Feature | Driver | A call accepts | Rust |
/// |---|---|---|---|
/// | `tokio-postgres` | tokio-postgres 0.7 | `&tokio_postgres::Transaction` | 1.85 |
/// | `deadpool-postgres` | deadpool-postgres 0.14 | also `&deadpool_postgres::Transaction` | 1.85 |
/// | `postgres` | postgres 0.19, synchronous | `&mut postgres::Transaction` | 1.85 |
/// | `sqlx` | sqlx 0.9 | `&mut sqlx::Transaction<Postgres>`; `&mut sqlx::PgConnection` with an open transaction | 1.94 |
/// | `sqlx-08` | sqlx 0.8, from 0.8.4 | the same types of sqlx 0.8 | 1.85 |
/// | `sea-orm` | sea-orm 2, with sqlx 0.9 | also `&sea_orm::DatabaseTransaction` | 1.94 |
/// | `sea-orm-1` | sea-orm 1.1, with sqlx 0.8 | the same type of sea-orm 1 | 1.85 |
/// | `diesel-async`, `diesel-async-08`, `diesel-async-07` | diesel-async 0.9, 0.8 or 0.7, with diesel 2.3 | `&mut diesel_async::AsyncPgConnection`, within `transaction(..)` | 1.86 |
/// | `diesel` | diesel 2.3 with libpq, synchronous | `&mut diesel::PgConnection`, within `transaction(..)` | 1.86 |
///
/// The last column is the oldest Rust that the driver supports, if Cargo selects dependencies for it (`resolver = "3"`, and
/// `rust-version` in your `Cargo.toml`). Without a driver, the crate needs Rust 1.85.
///
/// Clients and pools do not implement it, because outside of a transaction the event and the change would not commit together.
/// If the type can also be a connection without a transaction, each call checks this at run time. The trait is sealed.
#[doc = include_str!("drivers.md")]
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
pub trait OutboxTransaction: Driver {
    /// Fails if no transaction is open. Costs no round trip.
    #[doc(hidden)]
    fn in_transaction(&mut self) -> Result<(), PostgresError> {
        if self.is_in_transaction()? == Some(false) {
            return Err(PostgresError::detected("25P01", "no transaction is open on this connection"));
        }
        Ok(())
    }

    /// Runs a statement in the transaction, in one round trip, and returns its rows.
    #[doc(hidden)]
    fn call(
        mut self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Answers> + Send
    where
        Self: Sized,
    {
        async move {
            self.in_transaction()?;
            self.rows(statement, arguments).await
        }
    }
}

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
pub trait OutboxClient: Driver {
    /// Fails if a transaction is open. Costs no round trip.
    #[doc(hidden)]
    fn outside_transaction(&mut self) -> Result<(), PostgresError> {
        if self.is_in_transaction()? == Some(true) {
            return Err(PostgresError::detected("25001", "a transaction is open on this connection"));
        }
        Ok(())
    }

    /// Runs and commits a statement in one round trip, and returns its rows.
    #[doc(hidden)]
    fn call(
        &mut self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Answers> + Send {
        async move {
            self.outside_transaction()?;
            self.rows(statement, arguments).await
        }
    }
}

/// The operations of a driver. It is not exported, which seals the traits above.
pub trait Driver: Send {
    /// Whether a transaction is open, as far as the driver tracks it. `None` if the type alone determines it. Costs no round
    /// trip. A driver whose type can be in either state must implement this.
    fn is_in_transaction(&mut self) -> Result<Option<bool>, PostgresError> {
        Ok(None)
    }

    /// Runs a statement, and returns its rows.
    fn rows(
        &mut self,
        statement: &Statement,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Answers> + Send;

    /// Runs a statement, and returns the number of changed rows.
    fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> impl Future<Output = Changes> + Send;
}
