use ::sqlx_08 as sqlx;

#[path = "connection.rs"]
mod connection;

pub use connection::Connected;

pub fn statement(sql: &str) -> &str {
    sql
}
