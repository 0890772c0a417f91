//! What begins and commits the transaction of a phase.
//!
//! The work of a phase is a generic `AsyncFnOnce`, so that no closure or future is boxed. Its argument must not name a lifetime
//! of its own: the compiler checks whether the future of a phase is `Send` without knowing its lifetimes, and rejects
//! `&'t mut PgTransaction<'static>` with "implementation of `AsyncFnOnce` is not general enough". So a shared reference to a
//! transaction has one lifetime twice, and with sqlx the work receives the connection of the transaction.

use std::future::Future;

use pg_outbox::{OutboxTransaction, PostgresError};

use crate::idempotency::PhaseError;

/// It is not exported, which seals the traits below.
pub trait Sealed {}

/// What [`Guard::phase`](super::Guard::phase) takes: a reference to a connection without a transaction, or to a pool.
///
/// | Feature | Connection | The work of the phase receives |
/// |---|---|---|
/// | `tokio-postgres` | `&mut tokio_postgres::Client` | `&tokio_postgres::Transaction` |
/// | `deadpool-postgres` | `&mut deadpool_postgres::Client` | `&deadpool_postgres::Transaction` |
/// | `sqlx` | `&sqlx::PgPool` | `&mut sqlx::PgConnection`, the connection of the transaction |
/// | `sea-orm` | `&sea_orm::DatabaseConnection` | `&sea_orm::DatabaseTransaction` |
/// | `diesel-async` | `&mut diesel_async::AsyncPgConnection` | `&mut diesel_async::AsyncPgConnection` |
///
/// With a feature for another version, such as `sqlx-08`, the types of that version implement it too. The synchronous drivers
/// implement `BlockingPhaseConnection`. The trait is sealed.
///
/// Code that works with every driver names it as a bound:
///
/// ```
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// use pg_outbox::Event;
/// use pg_idempotency::idempotency::{Guard, PhaseConnection, PhaseError};
///
/// async fn announce<C: PhaseConnection>(
///     guard: &mut Guard,
///     connection: C,
/// ) -> Result<(), PhaseError<pg_outbox::Error>> {
///     guard
///         .phase(connection, "announced", async |tx: C::Tx<'_>| {
///             pg_outbox::enqueue(tx, Event::new("payment", 1, "PaymentStarted").tombstone()).await?;
///             Ok(())
///         })
///         .await
/// }
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reference to a connection that can begin the transaction of a phase",
    note = "pass `&mut client` with tokio-postgres and deadpool-postgres, `&pool` with sqlx, `&connection` with sea-orm, and \
            `&mut connection` with diesel-async; with postgres and diesel, call `phase_blocking`",
    note = "the feature must match the version of the driver, such as `sqlx-08` for sqlx 0.8"
)]
pub trait PhaseConnection: Sealed + Send {
    /// The open transaction.
    #[doc(hidden)]
    type Transaction: Send;

    /// What the work of the phase receives.
    type Tx<'t>: OutboxTransaction;

    /// Fails if a transaction is open.
    #[doc(hidden)]
    fn begin_phase(self) -> impl Future<Output = Result<Self::Transaction, PostgresError>> + Send;

    #[doc(hidden)]
    fn in_phase(transaction: &mut Self::Transaction) -> Self::Tx<'_>;

    #[doc(hidden)]
    fn commit_phase(transaction: Self::Transaction)
    -> impl Future<Output = Result<(), PostgresError>> + Send;

    /// Dropping the transaction of most drivers rolls it back.
    #[doc(hidden)]
    fn roll_back_phase(transaction: Self::Transaction) -> impl Future<Output = ()> + Send {
        async { drop(transaction) }
    }
}

/// What [`Guard::phase_blocking`](super::Guard::phase_blocking) takes: a connection of a synchronous driver, without a
/// transaction.
///
/// | Feature | Connection | The work of the phase receives |
/// |---|---|---|
/// | `postgres` | `&mut postgres::Client` | `&mut postgres::Transaction` |
/// | `diesel` | `&mut diesel::PgConnection` | `&mut diesel::PgConnection` |
///
/// The trait is sealed. Code that works with both drivers names it as a bound:
///
/// ```
/// use pg_idempotency::idempotency::{BlockingPhaseConnection, Guard, PhaseError};
///
/// fn start<C: BlockingPhaseConnection>(guard: &mut Guard, connection: &mut C) -> Result<(), PhaseError<()>> {
///     guard.phase_blocking(connection, "started", |_| Ok(()))
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a connection that can begin the transaction of a phase",
    note = "pass `&mut client` with postgres, and `&mut connection` with diesel; with other drivers, call `phase`"
)]
pub trait BlockingPhaseConnection: Sealed + 'static {
    /// What the work of the phase receives a reference to.
    type Transaction<'c>;

    /// Runs the work in a transaction. Commits it if the work succeeds, and rolls it back otherwise.
    #[doc(hidden)]
    fn run_phase<T, E>(
        &mut self,
        work: impl FnOnce(&mut Self::Transaction<'_>) -> Result<T, PhaseError<E>>,
    ) -> Result<T, PhaseError<E>>;

    #[doc(hidden)]
    fn in_phase(transaction: &mut Self::Transaction<'_>) -> impl OutboxTransaction;
}
