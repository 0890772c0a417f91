//! sqlx. Its versions differ in the crate, and in the type of SQL.

use std::borrow::Cow;

use super::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
use crate::error::{Details, DriverError, PostgresError, WithoutSqlstate};
use crate::statement::{Answer, Argument, Column, Kind, Statement};

/// sqlx caches prepared statements per connection.
macro_rules! driver {
    ($connection:ty, $self:ident => $executor:expr $(, $is_in_transaction:expr)?) => {
        impl Driver for $connection {
            $(fn is_in_transaction(&mut $self) -> Result<Option<bool>, PostgresError> {
                Ok(Some($is_in_transaction))
            })?

            async fn rows(&mut $self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
                let rows = query(&statement.sql, arguments)?.fetch_all($executor).await?;
                Ok(rows.iter().map(|row| answer(statement, row)).collect::<Result<_, Error>>()?)
            }

            async fn execute(&mut $self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
                Ok(query(sql, arguments)?.execute($executor).await?.rows_affected())
            }
        }
    };
}

macro_rules! version {
    ($version:ident, $sqlx:ident, $sql:path) => {
        pub mod $version {
            use ::$sqlx::error::{DatabaseError, Error};
            use ::$sqlx::postgres::{PgArguments, PgRow};
            use ::$sqlx::query::Query;
            use ::$sqlx::{
                Arguments, Connection, PgConnection, PgPool, PgTransaction, Postgres, Row,
            };

            use super::*;

            impl OutboxTransaction for &mut PgTransaction<'_> {}
            impl OutboxTransaction for &mut PgConnection {}
            impl OutboxClient for &mut PgConnection {}
            impl OutboxClient for &PgPool {}

            // sqlx does not track a BEGIN that was sent as SQL.
            driver!(&mut PgConnection, self => &mut **self, Connection::is_in_transaction(&**self));
            // Checked too: when a nested `begin` fails or is cancelled, sqlx rolls back the outer transaction, whose object remains.
            driver!(&mut PgTransaction<'_>, self => &mut ***self, Connection::is_in_transaction(&***self));
            driver!(&PgPool, self => *self);

            fn query<'q>(
                sql: &'q str,
                arguments: &[Argument<'_>],
            ) -> Result<Query<'q, Postgres, PgArguments>, Error> {
                let mut bound = PgArguments::default();
                for argument in arguments {
                    let added = match *argument {
                        Argument::Text(text) => bound.add(text),
                        Argument::Texts(texts) => bound.add(texts),
                        Argument::Bytes(bytes) => bound.add(bytes),
                        Argument::ByteStrings(byte_strings) => bound.add(byte_strings),
                        Argument::Flags(flags) => bound.add(flags),
                        Argument::Seconds(seconds) => bound.add(seconds),
                        Argument::Number(number) => bound.add(number),
                    };
                    added.map_err(Error::Encode)?;
                }
                Ok(::$sqlx::query_with($sql(sql), bound))
            }

            pub fn answer(statement: &Statement, row: &PgRow) -> Result<Answer, Error> {
                statement.answer(|index, kind| {
                    Ok(match kind {
                        Kind::Text => Column::Text(row.try_get(index)?),
                        Kind::Bytes => Column::Bytes(row.try_get(index)?),
                        Kind::Flag => Column::Flag(row.try_get(index)?),
                        Kind::Flags => Column::Flags(row.try_get(index)?),
                        Kind::Seconds => Column::Seconds(row.try_get(index)?),
                        Kind::Number => Column::Number(row.try_get(index)?),
                    })
                })
            }

            impl DriverError for Error {
                fn details(&self) -> Details {
                    let answer = self.as_database_error();
                    Details {
                        sqlstate: answer.and_then(DatabaseError::code).map(Cow::into_owned),
                        message: answer
                            .map_or_else(|| self.to_string(), |answer| answer.message().to_owned()),
                        constraint: answer.and_then(|answer| answer.constraint()).map(str::to_owned),
                        without_sqlstate: match self {
                            // sqlx reports an incomplete answer as a protocol error.
                            Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => {
                                WithoutSqlstate::ConnectionLost
                            }
                            Error::PoolTimedOut => WithoutSqlstate::NoConnection,
                            _ => WithoutSqlstate::Rejected,
                        },
                    }
                }
            }
        }
    };
}

#[cfg(feature = "sqlx-08")]
version!(version_08, sqlx_08, std::convert::identity);
// The SQL consists of this crate's statements and quoted names of tables.
#[cfg(feature = "sqlx-09")]
version!(version_09, sqlx, ::sqlx::AssertSqlSafe);
