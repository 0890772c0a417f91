//! What the suite needs of a driver: a connection, a transaction, and SQL in it.

#[cfg(feature = "deadpool-postgres")]
pub mod deadpool_postgres;
#[cfg(feature = "diesel")]
mod diesel;
mod diesel_async;
#[cfg(feature = "postgres")]
mod postgres;
pub mod sea_orm;
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use pg_outbox::{OutboxClient, OutboxTransaction};

pub trait Connection: Sized {
    type Tx<'c>: Tx<Error = Self::Error>
    where
        Self: 'c;
    /// The driver's own error.
    type Error: std::error::Error + 'static;

    /// Whether the pool pings a connection that is returned to it, which adds a round trip.
    #[allow(dead_code)] // for the tests of pg-idempotency
    const IS_PINGED_BY_ITS_POOL: bool = false;

    async fn connect(url: &str) -> Self;

    async fn begin(&mut self) -> Self::Tx<'_>;

    fn client(&mut self) -> impl OutboxClient;
}

pub trait Tx {
    type Error: std::error::Error;

    fn tx(&mut self) -> impl OutboxTransaction;

    /// Runs a statement and returns the number of changed rows.
    async fn run(&mut self, sql: &str) -> Result<u64, Self::Error>;

    async fn commit(self);

    async fn rollback(self);
}

/// Runs a test whose driver blocks the thread. What the test spawns, and the connections of the other clients, run on another
/// thread.
#[allow(dead_code)] // for the synchronous drivers
pub fn on_this_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let others = std::thread::spawn(move || runtime.block_on(stopped));
    let entered = handle.enter();
    pg_outbox::block_on(test);
    drop((entered, stop));
    let _ = others.join();
}
