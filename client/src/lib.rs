//! Inserts events into a Postgres outbox table, inside the application's own transaction.
//!
//! An application that changes its data and then tells Kafka can fail between the two: the change without
//! its event, or the event of a change that was rolled back. Here the event is a row, inserted by the
//! transaction that makes the change. Both commit, or neither does. The daemon `outbox-relay` then moves
//! committed rows to Kafka: at least once, and those of one key in the order of their commits.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_outbox::Event;
//!
//! #[derive(serde::Serialize)]
//! struct OrderPaid {
//!     order_id: i64,
//! }
//!
//! async fn pay_order(
//!     client: &mut tokio_postgres::Client,
//!     order_id: i64,
//!     traceparent: &str,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let tx = client.transaction().await?;
//!     // First the order's row: its lock makes the writers of one order take turns.
//!     tx.execute("UPDATE shop_order SET status = 'paid' WHERE id = $1", &[&order_id]).await?;
//!     let event = Event::new("order", order_id, "OrderPaid")
//!         .json(&OrderPaid { order_id })?
//!         .header("traceparent", traceparent);
//!     pg_outbox::enqueue(&tx, event).await?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! The event becomes a record of the topic `events.order` with the key `order_id`, the JSON as its value,
//! byte for byte, and the headers `event_id`, `event_type` and `traceparent`. The table is `public.outbox`,
//! made by `outbox-relay migrate`; `Outbox` names another one and other topics.
//!
//! # Order
//!
//! Rows of one key (the aggregate id) are published in the order of the table's `id`. That is the order of
//! the commits **if the writers of one key take turns before they insert the event**: lock the aggregate's
//! row (`SELECT ... FOR UPDATE`, or the `UPDATE` itself), or update it under a check of its version, and
//! enqueue afterwards. Two transactions that insert events of one key without such a turn may commit in the
//! other order than their ids. `enqueue_many` keeps the order of its input.
//!
//! # Errors
//!
//! An event that Kafka could not take (a topic name by Kafka's rule, an empty key) is refused before
//! Postgres is asked, and the transaction goes on. After an error of Postgres the transaction can only be
//! rolled back. Errors, and the Debug of an event, print no payload.
//!
//! # Cancellation
//!
//! Dropping the future of `enqueue` or `enqueue_many` leaves open whether the events are in the
//! transaction: roll it back, as dropping the transaction does. An event is never half in.
//!
//! # Duplicates
//!
//! The relay repeats events after a crash. A duplicate bears the same [`EventId`], and consumers tell it by
//! that. A request that is made again, on the other hand, makes a new event: only the application knows
//! that the two are one, and can give both the same id with [`Event::event_id`].
//!
//! # Features
//!
//! One for each driver, alone or together; [`OutboxTransaction`] has an example with each:
//!
//! - `tokio-postgres` (default) accepts `tokio_postgres::Transaction`; of tokio it brings no runtime and no
//!   network. The statement is sent with its types: one round trip, nothing prepared, at home behind a
//!   pooler in transaction mode.
//! - `deadpool-postgres` accepts `deadpool_postgres::Transaction` too. The statements are prepared once a
//!   connection.
//! - `sqlx` accepts `sqlx::Transaction<Postgres>`, of sqlx 0.9. It brings no runtime and no TLS: choose those
//!   with sqlx's own features. Statements are prepared once a connection, here and below.
//! - `sea-orm` accepts `sea_orm::DatabaseTransaction` too, of sea-orm 2.
//! - `diesel-async` accepts `diesel_async::AsyncPgConnection`, of diesel-async 0.9, and only within
//!   `transaction(..)`, which is looked at at run time.
//! - With none, [`Event`], [`topic`], `version` and `retry` remain.
//!
//! All of them do the same: one suite of tests runs over each. What differs is what they tell about errors, which
//! [`PostgresError::sqlstate`] says.
//!
//! What makes the two ends beside the relay safe to retry, each an option of its own, and all but `version` and `retry`
//! with a driver:
//!
//! - `inbox`: a consumer that takes a duplicate without harm.
//! - `idempotency`: an API whose requests can be sent again.
//! - `once`: a key that is claimed for a time.
//! - `version`: an update that holds only if nobody else has changed the row.
//! - `retry`: trying again where that is safe, with pauses, a time and a budget; on tokio.
//! - `testing`: for the tests of applications.
//!
//! A payload column of type `json`, `jsonb` or `bytea` is recognised by the first call. After changing its
//! type, restart the applications: statements made for the old type fail a transaction or more.

pub mod topic;

mod error;
mod event;
mod event_id;

#[cfg(feature = "_driver")]
#[cfg_attr(not(all(feature = "idempotency", feature = "inbox", feature = "sqlx")), allow(dead_code))]
// one module or driver alone needs less
mod call;
#[cfg(all(feature = "idempotency", feature = "_driver"))]
pub mod idempotency;
#[cfg(all(feature = "inbox", feature = "_driver"))]
pub mod inbox;
#[cfg(all(feature = "_driver", any(feature = "idempotency", feature = "inbox", feature = "once")))]
mod invalid_text;
#[cfg(all(feature = "once", feature = "_driver"))]
pub mod once;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(all(feature = "testing", feature = "_driver"))]
pub mod testing;
#[cfg(feature = "version")]
pub mod version;

#[cfg(feature = "_driver")]
mod check;
#[cfg(feature = "tokio-postgres")]
mod columns;
#[cfg(feature = "_driver")]
mod driver;
#[cfg(feature = "_driver")]
mod insert;
#[cfg(feature = "_driver")]
mod outbox;
#[cfg(feature = "_driver")]
mod table;

pub use error::{Error, InvalidEvent};
pub use event::{Event, NoPayload, Payload};
pub use event_id::{EventId, ParseEventIdError};
pub use uuid::Uuid;

#[cfg(all(feature = "_modules", feature = "_driver"))]
pub use call::DatabaseError;
#[cfg(all(feature = "_modules", feature = "_driver"))]
pub use driver::OutboxClient;
#[cfg(feature = "_driver")]
pub use driver::OutboxTransaction;
#[cfg(feature = "_driver")]
pub use error::PostgresError;
#[cfg(all(feature = "_driver", any(feature = "idempotency", feature = "inbox", feature = "once")))]
pub use invalid_text::InvalidText;
#[cfg(feature = "_driver")]
pub use outbox::{Outbox, enqueue, enqueue_many};
#[cfg(feature = "_driver")]
pub use table::TableNameError;
