//! What diesel and diesel-async share, and the synchronous connection of diesel.

use std::fmt;

use diesel::QueryResult;
use diesel::deserialize::FromSql;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error};
use diesel::row::{Field, Row};
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::{Array, Binary, Bool, Double, Integer, Nullable, Text, Untyped};

use crate::error::{Details, DriverError, WithoutSqlstate};
use crate::statement::{Answer, Argument, Column, Kind, Statement};

/// The calls block the thread, so the futures are ready when they are first polled.
#[cfg(feature = "diesel")]
mod blocking {
    use diesel::connection::{AnsiTransactionManager, DefaultLoadingMode, LoadConnection};
    use diesel::connection::{Connection, TransactionManager};
    use diesel::{PgConnection, QueryResult};

    use super::{Query, answer};
    use crate::driver::{Answers, Changes, Driver, OutboxClient, OutboxTransaction};
    use crate::error::PostgresError;
    use crate::statement::{Argument, Statement};

    impl OutboxTransaction for &mut PgConnection {}
    impl OutboxClient for &mut PgConnection {}

    /// diesel has no type for a transaction: its closure receives the connection.
    impl Driver for &mut PgConnection {
        /// diesel does not track a BEGIN that was sent as SQL.
        fn is_in_transaction(&mut self) -> Result<Option<bool>, PostgresError> {
            let status = AnsiTransactionManager::transaction_manager_status_mut(*self);
            Ok(Some(status.transaction_depth()?.is_some()))
        }

        async fn rows(&mut self, statement: &Statement, arguments: &[Argument<'_>]) -> Answers {
            let query = Query::new(&statement.sql, arguments);
            let rows = LoadConnection::<DefaultLoadingMode>::load(*self, query)?;
            Ok(rows.map(|row| answer(statement, &row?)).collect::<QueryResult<_>>()?)
        }

        async fn execute(&mut self, sql: &str, arguments: &[Argument<'_>]) -> Changes {
            Ok(self.execute_returning_count(&Query::new(sql, arguments))? as u64)
        }
    }
}

/// SQL with its arguments. Unlike `diesel::sql_query`, it is prepared only once per connection.
pub struct Query<'a> {
    sql: &'a str,
    values: Vec<Value<'a>>,
}

enum Value<'a> {
    Text(Redacted<&'a str>),
    Texts(Redacted<&'a [&'a str]>),
    Bytes(Redacted<Option<&'a [u8]>>),
    ByteStrings(Redacted<&'a [&'a [u8]]>),
    Flags(Redacted<&'a [bool]>),
    Seconds(Redacted<f64>),
    Number(Redacted<i32>),
}

/// A value that diesel's instrumentation does not print.
struct Redacted<T>(T);

impl<'a> Query<'a> {
    pub fn new(sql: &'a str, arguments: &[Argument<'a>]) -> Query<'a> {
        let value = |argument: &Argument<'a>| match *argument {
            Argument::Text(text) => Value::Text(Redacted(text)),
            Argument::Texts(texts) => Value::Texts(Redacted(texts)),
            Argument::Bytes(bytes) => Value::Bytes(Redacted(bytes)),
            Argument::ByteStrings(byte_strings) => Value::ByteStrings(Redacted(byte_strings)),
            Argument::Flags(flags) => Value::Flags(Redacted(flags)),
            Argument::Seconds(seconds) => Value::Seconds(Redacted(seconds)),
            Argument::Number(number) => Value::Number(Redacted(number)),
        };
        Query { sql, values: arguments.iter().map(value).collect() }
    }
}

impl QueryFragment<Pg> for Query<'_> {
    /// diesel numbers the parameters in order, so it writes the same text again, even if a table's name contains the text of
    /// a parameter.
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let mut rest = self.sql;
        for (value, position) in self.values.iter().zip(1..) {
            let Some((before, after)) = rest.split_once(&format!("${position}")) else {
                return Err(Error::QueryBuilderError("a parameter is missing".into()));
            };
            out.push_sql(before);
            match value {
                Value::Text(text) => out.push_bind_param::<Text, _>(text),
                Value::Texts(texts) => out.push_bind_param::<Array<Text>, _>(texts),
                Value::Bytes(bytes) => out.push_bind_param::<Nullable<Binary>, _>(bytes),
                Value::ByteStrings(byte_strings) => out.push_bind_param::<Array<Binary>, _>(byte_strings),
                Value::Flags(flags) => out.push_bind_param::<Array<Bool>, _>(flags),
                Value::Seconds(seconds) => out.push_bind_param::<Double, _>(seconds),
                Value::Number(number) => out.push_bind_param::<Integer, _>(number),
            }?;
            rest = after;
        }
        out.push_sql(rest);
        Ok(())
    }
}

impl diesel::query_builder::Query for Query<'_> {
    type SqlType = Untyped;
}

/// diesel caches the prepared statement by its text.
impl QueryId for Query<'_> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Sql, T: ToSql<Sql, Pg>> ToSql<Sql, Pg> for Redacted<T> {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        self.0.to_sql(out)
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

pub fn answer<'a>(statement: &Statement, row: &impl Row<'a, Pg>) -> QueryResult<Answer> {
    statement.answer(|index, kind| {
        Ok(match kind {
            Kind::Text => Column::Text(value::<Nullable<Text>, _>(row, index)?),
            Kind::Bytes => Column::Bytes(value::<Nullable<Binary>, _>(row, index)?),
            Kind::Flag => Column::Flag(value::<Bool, _>(row, index)?),
            Kind::Flags => Column::Flags(value::<Array<Bool>, _>(row, index)?),
            Kind::Seconds => Column::Seconds(value::<Nullable<Double>, _>(row, index)?),
            Kind::Number => Column::Number(value::<Nullable<Integer>, _>(row, index)?),
        })
    })
}

fn value<'a, Sql, T: FromSql<Sql, Pg>>(row: &impl Row<'a, Pg>, index: usize) -> QueryResult<T> {
    let field = row.get(index).ok_or_else(|| Error::DeserializationError("a column is missing".into()))?;
    T::from_nullable_sql(field.value()).map_err(Error::DeserializationError)
}

impl DriverError for Error {
    fn details(&self) -> Details {
        match self {
            Error::DatabaseError(kind, information) => Details {
                sqlstate: sqlstate(kind, information.message()).map(str::to_owned),
                message: information.message().to_owned(),
                constraint: information.constraint_name().map(str::to_owned),
                without_sqlstate: match kind {
                    // diesel-async uses these for every error that PostgreSQL did not report.
                    DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => {
                        WithoutSqlstate::ConnectionLost
                    }
                    _ => WithoutSqlstate::NotExposed,
                },
            },
            Error::RollbackErrorOnCommit { commit_error, .. } => commit_error.details(),
            other => Details { message: other.to_string(), ..Details::default() },
        }
    }
}

/// diesel does not expose the SQLSTATE of an error. It has a kind for some. Others are recognized by their English message. If
/// the server has another `lc_messages`, the SQLSTATE is unknown.
///
/// Errors that can be retried, that end the connection, or that report a missing object: the beginning of the message, another
/// part of it, and the SQLSTATE.
const ENGLISH_MESSAGES: [(&str, &str, &str); 22] = [
    ("the lock of this idempotency key is no longer held", "", "OB001"),
    ("this scope has the maximum number of idempotency keys", "", "OB002"),
    ("deadlock detected", "", "40P01"),
    ("canceling statement due to lock timeout", "", "55P03"),
    ("could not obtain lock on ", "", "55P03"),
    ("canceling statement due to ", "", "57014"),
    ("terminating connection due to administrator command", "", "57P01"),
    ("terminating connection because of crash of another server process", "", "57P02"),
    ("terminating connection due to idle-session timeout", "", "57P05"),
    ("terminating connection due to idle-in-transaction timeout", "", "25P03"),
    ("terminating connection due to transaction timeout", "", "25P04"),
    ("current transaction is aborted", "", "25P02"),
    ("sorry, too many clients already", "", "53300"),
    ("permission denied for ", "", "42501"),
    ("relation ", " does not exist", "42P01"),
    ("schema ", " does not exist", "3F000"),
    ("function ", " does not exist", "42883"),
    ("column ", " does not exist", "42703"),
    ("column ", " but expression is of type ", "42804"),
    ("invalid input syntax for type ", "", "22P02"),
    ("invalid byte sequence for encoding ", "", "22021"),
    ("unsupported Unicode escape sequence", "", "22P05"),
];

fn sqlstate(kind: &DatabaseErrorKind, message: &str) -> Option<&'static str> {
    Some(match kind {
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::ForeignKeyViolation => "23503",
        DatabaseErrorKind::NotNullViolation => "23502",
        DatabaseErrorKind::CheckViolation => "23514",
        DatabaseErrorKind::RestrictViolation => "23001",
        DatabaseErrorKind::ExclusionViolation => "23P01",
        DatabaseErrorKind::Unknown => return in_english(message),
        _ => return None,
    })
}

fn in_english(message: &str) -> Option<&'static str> {
    let like = |(begin, part, _): &&(&str, &str, &str)| message.starts_with(begin) && message.contains(part);
    ENGLISH_MESSAGES.iter().find(like).map(|(_, _, sqlstate)| *sqlstate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_message_determines_the_sqlstate() {
        for (message, expected) in [
            ("canceling statement due to lock timeout", Some("55P03")),
            ("canceling statement due to statement timeout", Some("57014")),
            ("column \"payload\" is of type bytea but expression is of type json", Some("42804")),
            ("column \"payload\" of relation \"outbox\" does not exist", Some("42703")),
            ("Verklemmung entdeckt", None),
        ] {
            assert_eq!(sqlstate(&DatabaseErrorKind::Unknown, message), expected, "{message}");
        }
        assert_eq!(sqlstate(&DatabaseErrorKind::ClosedConnection, "deadlock detected"), None);
    }
}
