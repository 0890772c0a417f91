//! diesel-async 0.7.

use ::diesel_async_07 as diesel_async;

#[path = "connection.rs"]
mod connection;
