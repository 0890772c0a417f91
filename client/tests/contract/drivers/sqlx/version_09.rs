use ::sqlx;

#[path = "connection.rs"]
mod connection;

pub use connection::Connected;

pub fn statement(sql: &str) -> sqlx::AssertSqlSafe<&str> {
    sqlx::AssertSqlSafe(sql)
}
