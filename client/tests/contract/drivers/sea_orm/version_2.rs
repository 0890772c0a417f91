use ::sea_orm;

use self::sea_orm::{ConnectionTrait, DbErr, ExecResult, QueryResult, Statement};

#[path = "connection.rs"]
mod connection;

async fn execute(connection: &impl ConnectionTrait, statement: Statement) -> Result<ExecResult, DbErr> {
    connection.execute_raw(statement).await
}

#[allow(dead_code)] // for the phases of pg-idempotency
pub async fn query_one(
    connection: &impl ConnectionTrait,
    statement: Statement,
) -> Result<Option<QueryResult>, DbErr> {
    connection.query_one_raw(statement).await
}
