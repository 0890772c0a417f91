//! sea-orm 2, which uses sqlx 0.9.

use ::sea_orm;

use self::sea_orm::{ConnectionTrait, DbErr, ExecResult, QueryResult, Statement};
use crate::driver::sqlx::version_09::answer;

#[path = "connection.rs"]
mod connection;
#[path = "error.rs"]
mod error;
async fn execute(connection: &impl ConnectionTrait, statement: Statement) -> Result<ExecResult, DbErr> {
    connection.execute_raw(statement).await
}

async fn query_all(
    connection: &impl ConnectionTrait,
    statement: Statement,
) -> Result<Vec<QueryResult>, DbErr> {
    connection.query_all_raw(statement).await
}
