//! The transactions of the supported drivers.

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres;
mod tokio_postgres;

use std::future::Future;

use ::tokio_postgres::Error as PgError;
use ::tokio_postgres::error::SqlState;

#[cfg(feature = "_modules")]
use crate::call::{Answer, Argument, Call};
use crate::error::Error;
#[cfg(feature = "_modules")]
use crate::error::PostgresError;
use crate::event::Event;
use crate::insert::Insert;

/// A reference to an open transaction: `&tokio_postgres::Transaction` or `&deadpool_postgres::Transaction`.
///
/// A client or a pool is none: outside a transaction the event and the change that it announces would not
/// commit together. The trait is sealed; this crate implements it, a driver a feature.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")]
/// async fn place_order(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
///     let tx = client.transaction().await?;
///     pg_outbox::enqueue(&tx, pg_outbox::Event::new("order", 1, "OrderPlaced").tombstone()).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// ```
///
/// The same with the client does not compile:
///
/// ```compile_fail,E0277
/// # #[cfg(not(feature = "tokio-postgres"))] compile_error!("E0277");
/// async fn place_order(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
///     let tx = client;
///     pg_outbox::enqueue(&*tx, pg_outbox::Event::new("order", 1, "OrderPlaced").tombstone()).await?;
///     Ok(())
/// }
/// ```
#[cfg_attr(
    feature = "deadpool-postgres",
    doc = r#"
Nor does it with a pool, or a client of one:

```compile_fail,E0277
async fn place_order(pool: &deadpool_postgres::Pool) -> Result<(), Box<dyn std::error::Error>> {
    pg_outbox::enqueue(pool, pg_outbox::Event::new("order", 1, "OrderPlaced").tombstone()).await?;
    Ok(())
}
```

```compile_fail,E0277
async fn place_order(client: &deadpool_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    pg_outbox::enqueue(client, pg_outbox::Event::new("order", 1, "OrderPlaced").tombstone()).await?;
    Ok(())
}
```
"#
)]
// On references, so that a driver whose statements need `&mut Transaction` fits too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reference to an open transaction",
    label = "an event is enqueued in the transaction of the change that it announces",
    note = "begin a transaction and pass `&tx`; of a `tx: &mut Transaction` pass `&*tx`"
)]
pub trait OutboxTransaction: Driver {}

/// A reference to a connection outside a transaction: `&tokio_postgres::Client` or `&deadpool_postgres::Client`.
///
/// What a call does through it is committed at once. Modules ask for one where others have to see the effect
/// before the application's own transaction ends, such as the lock of an idempotency key. The trait is sealed.
#[cfg(feature = "_modules")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reference to a client",
    label = "this is committed by itself, before the transaction of the change begins",
    note = "of a client from a pool pass `&client`"
)]
pub trait OutboxClient: Caller {}

/// Calls functions of the schema, in a transaction or outside; unnameable outside, which seals
/// [`OutboxClient`].
#[cfg(feature = "_modules")]
pub trait Caller: Send {
    /// Calls a function in one round trip, and reads its rows.
    fn call(
        self,
        call: &Call,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Result<Vec<Answer>, PostgresError>> + Send;
}

/// Stands for [`Caller`] where no module calls anything.
#[cfg(not(feature = "_modules"))]
pub trait Caller: Send {}

/// What a driver does; unnameable outside, which seals [`OutboxTransaction`].
pub trait Driver: Caller {
    /// Inserts the events, at least one, in one round trip once it knows the table, and counts the rows.
    fn insert(self, insert: &Insert, events: &[Event]) -> impl Future<Output = Result<u64, Error>> + Send;
}

fn failure(insert: &Insert, error: PgError) -> Error {
    let table = insert.table().to_owned();
    match error.code() {
        Some(&(SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME)) => {
            Error::NoOutbox { table, source: error.into() }
        }
        _ => Error::Postgres { table, source: error.into() },
    }
}

/// Whether the payload column has changed its type since the statement was made.
fn is_stale(error: &PgError) -> bool {
    error.code() == Some(&SqlState::DATATYPE_MISMATCH)
}
