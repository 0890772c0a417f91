//! diesel-async 0.9.

use ::diesel_async;

#[path = "connection.rs"]
mod connection;
#[cfg(feature = "idempotency")]
#[path = "phase.rs"]
mod phase;
