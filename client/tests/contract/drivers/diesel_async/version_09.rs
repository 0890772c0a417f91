use ::diesel_async;

#[path = "connection.rs"]
mod connection;
