//! The traits that begin and commit the transaction of a phase, for drivers that are supported in several versions.

use std::future::Future;

use crate::driver::OutboxTransaction;
use crate::error::PostgresError;

/// It is not exported, which seals the traits below.
pub trait Sealed {}

/// `sqlx::PgPool`, of each version of sqlx whose feature is enabled. The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pool of PostgreSQL connections of sqlx",
    note = "the feature must match the version of sqlx: `sqlx-08`, or `sqlx-09`, which `sqlx` enables"
)]
#[cfg(feature = "_sqlx")]
pub trait SqlxPool: Sealed + Sync {
    /// `sqlx::PgTransaction`.
    type Transaction: Send;

    #[doc(hidden)]
    fn begin_phase(&self) -> impl Future<Output = Result<Self::Transaction, PostgresError>> + Send;

    #[doc(hidden)]
    fn in_phase(transaction: &mut Self::Transaction) -> impl OutboxTransaction;

    #[doc(hidden)]
    fn commit_phase(transaction: Self::Transaction)
    -> impl Future<Output = Result<(), PostgresError>> + Send;
}

/// `sea_orm::DatabaseConnection`, of each version of sea-orm whose feature is enabled. The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a connection of sea-orm",
    note = "the feature must match the version of sea-orm: `sea-orm-1`, or `sea-orm-2`, which `sea-orm` enables"
)]
#[cfg(feature = "_sea-orm")]
pub trait SeaOrmConnection: Sealed + Sync {
    /// `sea_orm::DatabaseTransaction`.
    type Transaction: Send + Sync;

    #[doc(hidden)]
    fn begin_phase(&self) -> impl Future<Output = Result<Self::Transaction, PostgresError>> + Send;

    #[doc(hidden)]
    fn in_phase(transaction: &Self::Transaction) -> impl OutboxTransaction;

    #[doc(hidden)]
    fn commit_phase(transaction: Self::Transaction)
    -> impl Future<Output = Result<(), PostgresError>> + Send;
}

/// `diesel_async::AsyncPgConnection`, of each version of diesel-async whose feature is enabled. The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a PostgreSQL connection of diesel-async",
    note = "the feature must match the version of diesel-async: `diesel-async-07`, `diesel-async-08`, or \
            `diesel-async-09`, which `diesel-async` enables"
)]
#[cfg(feature = "_diesel-async")]
pub trait DieselConnection: Sealed + Send {
    /// Fails if a transaction is open.
    #[doc(hidden)]
    fn begin_phase(&mut self) -> impl Future<Output = Result<(), PostgresError>> + Send;

    #[doc(hidden)]
    fn in_phase(&mut self) -> impl OutboxTransaction;

    #[doc(hidden)]
    fn commit_phase(&mut self) -> impl Future<Output = Result<(), PostgresError>> + Send;

    #[doc(hidden)]
    fn roll_back_phase(&mut self) -> impl Future<Output = Result<(), PostgresError>> + Send;
}
