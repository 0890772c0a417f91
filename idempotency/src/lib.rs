//! Makes requests and consumers safe to retry, with PostgreSQL and nothing else.
//!
//! A request, a record and a job can each arrive twice. Each module makes the second arrival harmless, in the transaction of
//! your business change. The page [Which module do I need?](which_module/index.html) helps you to choose. It also describes
//! natural keys, webhooks, and what is *exactly once*.
//!
//! | Module | Purpose | Table |
//! |---|---|---|
//! | [`idempotency`] | APIs with requests that can be repeated, with the header `Idempotency-Key` and recovery points | `idempotency_key` |
//! | `tower` | the same as a layer for axum and other tower servers | `idempotency_key` |
//! | [`inbox`] | consumers that are safe against duplicates | `processed_message` |
//! | [`once`] | keys that are claimed for a limited time, as with `SETNX` in Redis | `once_key` |
//! | [`version`] | updates that succeed only if the row has not changed | your own |
//! | `retry` | safe retries with backoff, a time limit and a budget, asynchronous with tokio or synchronous without a runtime | none |
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_idempotency::inbox::{self, Receipt};
//!
//! /// The effect happens once, no matter how often the event is delivered.
//! async fn consume(tx: &tokio_postgres::Transaction<'_>, event_id: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     if inbox::receive(tx, "balances", event_id).await? == Receipt::First {
//!         tx.execute("UPDATE account SET cents = cents + 1 WHERE id = 1", &[]).await?;
//!     }
//!     Ok(())
//! }
//! # }
//! ```
//!
//! Create the tables with `outbox-relay migrate --with idempotency,inbox,once`.
//!
//! # Features
//!
//! The crate uses the drivers of [`pg_outbox`], and its features for drivers have the same names: `tokio-postgres`,
//! `deadpool-postgres`, `postgres`, `sqlx`, `sqlx-08`, `sea-orm`, `sea-orm-1`, `diesel-async`, `diesel-async-08`,
//! `diesel-async-07` and `diesel`. None is enabled by default. A call takes a [`pg_outbox::OutboxTransaction`], so that it is
//! part of your transaction, or a [`pg_outbox::OutboxClient`] if it must commit by itself.
//!
//! ```toml
//! pg-outbox = { version = "0.1", features = ["tokio-postgres"] }
//! pg-idempotency = { version = "0.1", features = ["tokio-postgres"] }
//! ```
//!
//! - `retry`: the module `retry`.
//! - `tower`: the module `tower`. It needs a tokio runtime.
//! - `opentelemetry` and `tracing`: the layer of `tower` keeps the current trace in the task of a handler, so that the events
//!   of the handler get its headers.
//!
//! With a synchronous driver, [`pg_outbox::block_on`] runs a call.

#[cfg(all(doc, feature = "retry", feature = "tower"))]
#[doc = include_str!("which_module.md")]
pub mod which_module {}

pub mod idempotency;
pub mod inbox;
pub mod once;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(feature = "tower")]
pub mod tower;
pub mod version;

mod database;
mod invalid_text;

pub use database::DatabaseError;
pub use invalid_text::InvalidText;
