//! Inserts events into a PostgreSQL outbox table, in the application's own transaction.
//!
//! An application that commits a change and then sends an event to Kafka can fail between the two. With this crate, the event
//! is a row that the same transaction inserts. The change and the event are committed together or not at all. The relay
//! (`outbox-relay`) publishes committed rows to Kafka at least once, in commit order per key.
//!
//! ```no_run
//! # #[cfg(all(feature = "tokio-postgres", feature = "derive"))] mod example {
//! use pg_outbox::OutboxEvent;
//!
//! #[derive(serde::Serialize, OutboxEvent)]
//! #[outbox(aggregate = "order", key = "order_id")]
//! struct OrderPaid {
//!     order_id: i64,
//!     cents: i64,
//! }
//!
//! async fn pay_order(
//!     client: &mut tokio_postgres::Client,
//!     order_id: i64,
//!     cents: i64,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let tx = client.transaction().await?;
//!     // Update the order first: its row lock makes the writers of one order take turns. Without a change, there is no event.
//!     let sql = "UPDATE shop_order SET status = 'paid' WHERE id = $1 AND status = 'placed'";
//!     if tx.execute(sql, &[&order_id]).await? == 1 {
//!         pg_outbox::enqueue(&tx, &OrderPaid { order_id, cents }).await?;
//!     }
//!     tx.commit().await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! The event becomes a record of the topic `events.order` with the key `order_id`, the JSON of the struct as its value, and
//! the headers `event_id` and `event_type` (`OrderPaid`). Create the table `public.outbox` with `outbox-relay migrate`. With
//! [`Outbox`], you can use another table and other topics.
//!
//! The derive macro needs the feature `derive`. [`OutboxEvent`] describes its attribute. An untyped [`Event`] can have any
//! payload and headers. `enqueue_many` inserts many events:
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), pg_outbox::Error> {
//! use pg_outbox::Event;
//!
//! let paid = Event::new("order", 42, "OrderPaid").bytes(r#"{"cents": 1200}"#).header("source", "shop");
//! pg_outbox::enqueue_many(tx, [paid, Event::new("cart", 7, "CartEmptied").tombstone()]).await?;
//! # Ok(()) }
//! # }
//! ```
//!
//! The table and the topic template must match the relay's configuration. Check them with [`Outbox::check`] when the
//! application starts. The payload column can have the type `json`, `jsonb` or `bytea`. The relay can also publish a `text`
//! column, but this crate does not insert into one.
//!
//! # Order
//!
//! Rows of one key (the aggregate ID) are published in the order of the table's `id`. This is the commit order **if the
//! writers of one key take turns before they insert the event**. Lock the aggregate's row (`SELECT ... FOR UPDATE`, or the
//! `UPDATE` itself), or check its version in an update, and enqueue afterwards. Otherwise, two transactions can commit in a
//! different order from that of their IDs. `enqueue_many` keeps the order of its input.
//!
//! # Errors and cancellation
//!
//! Invalid events (an invalid topic name, an empty key) are rejected before a statement is sent, and the transaction stays
//! usable. After an error of PostgreSQL, or if you drop the future of a call, roll back the transaction. Errors and the Debug
//! output of events contain no payload.
//!
//! # Duplicates
//!
//! After a crash, the relay may send events again. A duplicate has the same [`EventId`], by which consumers recognize it. A
//! repeated request, however, creates a new event. If the application recognizes the repeated request, it can set the same
//! ID with [`Event::event_id`].
//!
//! # Features
//!
//! No feature is enabled by default. Choose at least one driver:
//!
//! ```toml
//! pg-outbox = { version = "0.1", features = ["tokio-postgres", "derive"] }
//! ```
//!
//! [`OutboxTransaction`] lists the drivers, what a call accepts from each, and examples. Features for drivers can be combined,
//! also for several versions of one. `sqlx`, `sea-orm`, `diesel-async` and `tokio-postgres` mean the newest supported version,
//! which a later release of this crate can change. To upgrade this crate and the driver independently, enable the feature that
//! names the version: `sqlx-09`, `sea-orm-2`, `diesel-async-09` or `tokio-postgres-07`.
//!
//! - No feature enables TLS, and none enables an async runtime for tokio-postgres, sqlx or sea-orm. Choose them with the driver's
//!   own features.
//! - `tokio-postgres` and `postgres` send statements with their types, in one round trip, and never prepare them. So a pooler in
//!   transaction mode works. With all other drivers, statements are prepared once per connection, so such a pooler must support
//!   prepared statements (PgBouncer 1.21 or later with `max_prepared_statements` above 0).
//! - With a synchronous driver, [`block_on`] runs a call of this crate.
//!
//! `derive` provides the derive macro of [`OutboxEvent`]. `testing` is for the tests of applications.
//!
//! With `opentelemetry`, `enqueue` adds the headers `traceparent` and `tracestate` of the current OpenTelemetry span (crate
//! opentelemetry 0.33) to each event, unless the event has a `traceparent`. With `tracing`, it does the same for the current
//! span of tracing (crate tracing-opentelemetry 0.34). Both must be the versions that the application uses. Otherwise, there is
//! no current span, and nothing is added.
//!
//! The first call learns whether the payload column has the type `json`, `jsonb` or `bytea`. After changing the type,
//! restart the applications, because statements for the old type fail at least once. This crate does not insert into a `text`
//! column.
//!
//! To make requests and consumers safe to retry, use the crate `pg-idempotency`, which uses the same drivers.

// Without a driver, nothing runs a statement.
#![cfg_attr(not(feature = "_driver"), allow(dead_code, unused_imports))]

pub mod topic;

#[cfg(feature = "testing")]
pub mod testing;

mod agreement;
mod block_on;
mod check;
mod driver;
mod error;
mod event;
mod event_id;
mod insert;
mod outbox;
#[allow(missing_docs)] // hidden
mod statement;
mod table;
#[cfg(feature = "opentelemetry")]
mod trace_context;
mod typed;

pub use agreement::{CheckError, Difference, RelayTopics};
pub use block_on::block_on;
pub use driver::{OutboxClient, OutboxTransaction};
pub use error::{Error, InvalidEvent, PostgresError};
pub use event::{Event, NoPayload, Payload};
pub use event_id::{EventId, ParseEventIdError};
pub use outbox::{Outbox, enqueue, enqueue_many};
#[cfg(feature = "derive")]
pub use pg_outbox_derive::OutboxEvent;
pub use table::TableNameError;
pub use typed::{IntoEvent, OutboxEvent};
pub use uuid::Uuid;

/// For the code that the derive macro generates, and for pg-idempotency. Both need exactly this version.
#[doc(hidden)]
pub mod __private {

    pub use crate::error::{Details, DriverError, WithoutSqlstate};
    pub use crate::statement::{Answer, Argument, Kind, Statement};
    pub use crate::table::quoted_schema;
    pub use serde::Serialize;

    /// The crates of the drivers, by their features.
    pub mod drivers {
        #[cfg(feature = "deadpool-postgres")]
        pub use ::deadpool_postgres;
        #[cfg(feature = "_diesel")]
        pub use ::diesel;
        #[cfg(feature = "diesel-async-09")]
        pub use ::diesel_async as diesel_async_09;
        #[cfg(feature = "diesel-async-07")]
        pub use ::diesel_async_07;
        #[cfg(feature = "diesel-async-08")]
        pub use ::diesel_async_08;
        #[cfg(feature = "postgres")]
        pub use ::postgres;
        #[cfg(feature = "sea-orm-2")]
        pub use ::sea_orm as sea_orm_2;
        #[cfg(feature = "sea-orm-1")]
        pub use ::sea_orm_1;
        #[cfg(feature = "sqlx-09")]
        pub use ::sqlx as sqlx_09;
        #[cfg(feature = "sqlx-08")]
        pub use ::sqlx_08;
        #[cfg(feature = "tokio-postgres")]
        pub use ::tokio_postgres;
    }
}
