//! diesel-async 0.8.

use ::diesel_async_08 as diesel_async;

#[path = "connection.rs"]
mod connection;
