//! diesel-async. All of its versions use the same version of diesel.

use diesel::QueryResult;
use futures_util::TryStreamExt;

use super::diesel::{Query, answer};
use super::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
use crate::error::PostgresError;
use crate::statement::{Argument, Statement};

macro_rules! version {
    ($diesel_async:ident) => {
        mod $diesel_async {
            use ::$diesel_async::{AnsiTransactionManager, TransactionManager};
            use ::$diesel_async::{AsyncConnectionCore, AsyncPgConnection};

            use super::*;

            impl OutboxTransaction for &mut AsyncPgConnection {}
            impl OutboxClient for &mut AsyncPgConnection {}

            /// diesel has no type for a transaction: its closure receives the connection. diesel caches prepared statements per
            /// connection.
            impl Driver for &mut AsyncPgConnection {
                /// diesel does not track a BEGIN that was sent as SQL.
                fn is_in_transaction(&mut self) -> Result<Option<bool>, PostgresError> {
                    let status = AnsiTransactionManager::transaction_manager_status_mut(*self);
                    Ok(Some(status.transaction_depth()?.is_some()))
                }

                async fn rows(&mut self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
                    let loading = AsyncConnectionCore::load(*self, Query::new(&statement.sql, arguments));
                    let rows: Vec<_> = loading.await?.try_collect().await?;
                    Ok(rows.iter().map(|row| answer(statement, row)).collect::<QueryResult<_>>()?)
                }

                async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
                    let query = Query::new(sql, arguments);
                    Ok(AsyncConnectionCore::execute_returning_count(*self, query).await? as u64)
                }
            }
        }
    };
}

#[cfg(feature = "diesel-async-07")]
version!(diesel_async_07);
#[cfg(feature = "diesel-async-08")]
version!(diesel_async_08);
#[cfg(feature = "diesel-async-09")]
version!(diesel_async);
