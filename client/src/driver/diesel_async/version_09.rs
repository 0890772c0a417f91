//! diesel-async 0.9.

use ::diesel_async;

#[path = "connection.rs"]
mod connection;
