//! sea-orm 1, which uses sqlx 0.8.

use ::sea_orm_1 as sea_orm;

use self::sea_orm::{ConnectionTrait, DbErr, ExecResult, QueryResult, Statement};
use crate::driver::sqlx::version_08::answer;

#[path = "connection.rs"]
mod connection;
#[path = "error.rs"]
mod error;
async fn execute(connection: &impl ConnectionTrait, statement: Statement) -> Result<ExecResult, DbErr> {
    connection.execute(statement).await
}

async fn query_all(
    connection: &impl ConnectionTrait,
    statement: Statement,
) -> Result<Vec<QueryResult>, DbErr> {
    connection.query_all(statement).await
}
