//! sqlx 0.8.

use ::sqlx_08 as sqlx;

#[path = "connection.rs"]
mod connection;
#[path = "error.rs"]
mod error;
#[cfg(feature = "sea-orm-1")]
pub use connection::answer;

/// This version accepts any SQL.
fn statement(sql: &str) -> &str {
    sql
}
