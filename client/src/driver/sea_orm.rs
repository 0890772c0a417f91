//! sea-orm, which uses sqlx: its rows and most of its errors are those of a version of sqlx.

use super::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
use crate::error::{Details, DriverError, PostgresError, WithoutSqlstate};
use crate::statement::{Argument, Statement};

/// sqlx caches prepared statements per connection.
macro_rules! driver {
    ($connection:ty, $query_all:ident, $execute:ident) => {
        impl Driver for &$connection {
            async fn rows(&mut self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
                let query = bound(*self, &statement.sql, arguments)?;
                let rows = ConnectionTrait::$query_all(*self, query).await?;
                let rows = rows.iter().map(|row| {
                    let row = row
                        .try_as_pg_row()
                        .ok_or_else(|| DbErr::Custom("the row is not a PostgreSQL row".to_owned()))?;
                    Ok(answer(statement, row)?)
                });
                rows.collect()
            }

            async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
                let query = bound(*self, sql, arguments)?;
                Ok(ConnectionTrait::$execute(*self, query).await?.rows_affected())
            }
        }
    };
}

macro_rules! version {
    ($sea_orm:ident, $sqlx:ident, $query_all:ident, $execute:ident) => {
        mod $sea_orm {
            use ::$sea_orm::sea_query::ArrayType;
            use ::$sea_orm::{ConnAcquireErr, DbBackend, DbErr, RuntimeErr, Value};
            use ::$sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction};

            use super::*;
            use crate::driver::sqlx::$sqlx::answer;

            impl OutboxTransaction for &DatabaseTransaction {}
            impl OutboxClient for &DatabaseConnection {}
            driver!(DatabaseTransaction, $query_all, $execute);
            driver!(DatabaseConnection, $query_all, $execute);

            /// Checks the database, because the types of sea-orm do not distinguish databases.
            fn bound(
                connection: &impl ConnectionTrait,
                sql: &str,
                arguments: &[Argument<'_>],
            ) -> Result<::$sea_orm::Statement, PostgresError> {
                let backend = connection.get_database_backend();
                if backend != DbBackend::Postgres {
                    let message = "the sea-orm connection is not a PostgreSQL connection";
                    return Err(PostgresError::detected("0A000", message));
                }
                Ok(::$sea_orm::Statement::from_sql_and_values(backend, sql, arguments.iter().map(value)))
            }

            fn value(argument: &Argument<'_>) -> Value {
                let array = |kind, values| Value::Array(kind, Some(Box::new(values)));
                match *argument {
                    Argument::Text(text) => Value::from(text),
                    Argument::Texts(texts) => {
                        array(ArrayType::String, texts.iter().copied().map(Value::from).collect())
                    }
                    Argument::Bytes(bytes) => Value::from(bytes.map(<[u8]>::to_vec)),
                    Argument::ByteStrings(byte_strings) => {
                        array(ArrayType::Bytes, byte_strings.iter().copied().map(Value::from).collect())
                    }
                    Argument::Flags(flags) => {
                        array(ArrayType::Bool, flags.iter().copied().map(Value::from).collect())
                    }
                    Argument::Seconds(seconds) => Value::from(seconds),
                    Argument::Number(number) => Value::from(number),
                }
            }

            impl DriverError for DbErr {
                fn details(&self) -> Details {
                    let without_sqlstate = match self {
                        DbErr::Conn(RuntimeErr::SqlxError(inner))
                        | DbErr::Exec(RuntimeErr::SqlxError(inner))
                        | DbErr::Query(RuntimeErr::SqlxError(inner)) => return inner.details(),
                        DbErr::ConnectionAcquire(ConnAcquireErr::Timeout) => WithoutSqlstate::NoConnection,
                        _ => WithoutSqlstate::Rejected,
                    };
                    Details { message: self.to_string(), without_sqlstate, ..Details::default() }
                }
            }
        }
    };
}

#[cfg(feature = "sea-orm-1")]
version!(sea_orm_1, version_08, query_all, execute);
#[cfg(feature = "sea-orm-2")]
version!(sea_orm, version_09, query_all_raw, execute_raw);
