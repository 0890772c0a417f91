//! sqlx 0.9.

use ::sqlx;

#[path = "connection.rs"]
mod connection;
#[path = "error.rs"]
mod error;
#[cfg(feature = "sea-orm-2")]
pub use connection::answer;

/// The SQL consists of this crate's statements and quoted names of tables.
fn statement(sql: &str) -> sqlx::AssertSqlSafe<&str> {
    sqlx::AssertSqlSafe(sql)
}
