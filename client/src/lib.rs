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
//!     // Update the order first: its row lock makes the writers of one order take turns.
//!     tx.execute("UPDATE shop_order SET status = 'paid' WHERE id = $1", &[&order_id]).await?;
//!     pg_outbox::enqueue(&tx, &OrderPaid { order_id, cents }).await?;
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
//! payload and headers:
//!
//! ```
//! use pg_outbox::Event;
//!
//! let event = Event::new("order", 42, "OrderPaid").bytes(r#"{"cents": 1200}"#).header("source", "shop");
//! ```
//!
//! # Check the outbox when the application starts
//!
//! The table and the topic template must match the relay's configuration. [`Outbox::check`] compares them with the database,
//! in which each relay records its template. The error names every difference.
//!
//! The payload column can have the type `json`, `jsonb` or `bytea`. The relay can also publish a `text` column, but this
//! crate does not insert into one.
//!
//! # Order
//!
//! Rows of one key (the aggregate ID) are published in the order of the table's `id`. This is the commit order **if the
//! writers of one key take turns before they insert the event**. Lock the aggregate's row (`SELECT ... FOR UPDATE`, or the
//! `UPDATE` itself), or check its version in an update, and enqueue afterwards. Otherwise, two transactions can commit in a
//! different order from that of their IDs. `enqueue_many` keeps the order of its input.
//!
//! # Errors
//!
//! Invalid events (an invalid topic name, an empty key) are rejected before a statement is sent, and the transaction stays
//! usable. After an error of PostgreSQL, the transaction can only be rolled back. Errors and the Debug output of events
//! contain no payload.
//!
//! # Cancellation
//!
//! If you drop the future of `enqueue` or `enqueue_many`, roll back the transaction, because it may contain the events.
//! Dropping the transaction also rolls it back.
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
//! | Feature | Driver | A call accepts | Rust |
//! |---|---|---|---|
//! | `tokio-postgres` | tokio-postgres 0.7 | `&tokio_postgres::Transaction` | 1.85 |
//! | `deadpool-postgres` | deadpool-postgres 0.14 | also `&deadpool_postgres::Transaction` | 1.85 |
//! | `postgres` | postgres 0.19, synchronous | `&mut postgres::Transaction` | 1.85 |
//! | `sqlx-08` | sqlx 0.8, from 0.8.4 | `&mut sqlx::Transaction<Postgres>`; `&mut sqlx::PgConnection` with an open transaction | 1.85 |
//! | `sqlx` | sqlx 0.9 | the same types of sqlx 0.9 | 1.94 |
//! | `sea-orm-1` | sea-orm 1.1, with sqlx 0.8 | also `&sea_orm::DatabaseTransaction` | 1.85 |
//! | `sea-orm` | sea-orm 2, with sqlx 0.9 | the same type of sea-orm 2 | 1.94 |
//! | `diesel-async`, `diesel-async-08`, `diesel-async-07` | diesel-async 0.9, 0.8 or 0.7, with diesel 2.3 | `&mut diesel_async::AsyncPgConnection`, within `transaction(..)` | 1.86 |
//! | `diesel` | diesel 2.3 with libpq, synchronous | `&mut diesel::PgConnection`, within `transaction(..)` | 1.86 |
//!
//! Features for drivers can be combined. The last column is the oldest Rust that the driver supports, if Cargo selects
//! dependencies for it (`resolver = "3"`, and `rust-version` in your `Cargo.toml`). Without a driver, the crate needs Rust 1.85.
//!
//! - `tokio-postgres` and `postgres` send statements with their types, in one round trip. Only the first call prepares one,
//!   within the transaction. So a pooler in transaction mode works. With all other drivers, statements are prepared once per
//!   connection.
//! - No feature enables TLS, and none enables an async runtime for tokio-postgres, sqlx or sea-orm. Choose them with the driver's
//!   own features.
//! - That a connection of sqlx or diesel has an open transaction is checked at run time. The types of other drivers ensure it.
//! - With a synchronous driver, `block_on` runs a call of this crate.
//!
//! `sqlx`, `sea-orm`, `diesel-async` and `tokio-postgres` are other names for the newest supported version: `sqlx-09`,
//! `sea-orm-2`, `diesel-async-09` and `tokio-postgres-07`. A later release of this crate can support a newer one. To upgrade
//! this crate and the driver independently, enable the feature that names the version. An application can use several
//! versions, for example while it moves from sqlx 0.8 to 0.9.
//!
//! Without a driver, no type is an `OutboxTransaction`, so nothing can be enqueued. [`Event`] and [`topic`] can be
//! used.
//!
//! All drivers store the same rows. They differ in the number of round trips and in the information in errors: see
//! [`PostgresError::sqlstate`].
//!
//! `testing` is for the tests of applications.
//!
//! To make APIs and consumers safe to retry, use the crate `pg-idempotency`, which uses the same drivers.
//!
//! `derive` provides the derive macro of [`OutboxEvent`].
//!
//! With `opentelemetry`, `enqueue` adds the headers `traceparent` and `tracestate` of the current OpenTelemetry span (crate
//! opentelemetry 0.33) to each event, unless the event has a `traceparent`. With `tracing`, it does the same for the current
//! span of tracing (crate tracing-opentelemetry 0.34). Both must be the versions that the application uses. Otherwise, there is
//! no current span, and nothing is added.
//!
//! The first call learns whether the payload column has the type `json`, `jsonb` or `bytea`. After changing the type,
//! restart the applications, because statements for the old type fail at least once.

// Without a driver, nothing runs a statement.
#![cfg_attr(not(feature = "_driver"), allow(dead_code, unused_imports))]

pub mod topic;

#[cfg(feature = "testing")]
pub mod testing;

mod agreement;
mod block_on;
#[allow(missing_docs)] // hidden
mod call;
mod check;
#[cfg(feature = "tokio-postgres")]
mod columns;
mod driver;
mod error;
mod event;
mod event_id;
mod insert;
mod outbox;
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
    pub use crate::call::{Answer, Argument, Call, Kind};
    pub use crate::error::{Details, DriverError, WithoutSqlstate};
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
