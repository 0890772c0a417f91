use std::fmt;

use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::result::Error as DieselError;
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::{Array, Binary, Bool, Double, Integer, Nullable, Text, Untyped};

use crate::call::Argument;

/// SQL with its arguments. Unlike `diesel::sql_query`, it is prepared only once per connection.
pub struct Statement<'a> {
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

impl<'a> Statement<'a> {
    pub fn new(sql: &'a str, arguments: &[Argument<'a>]) -> Statement<'a> {
        let value = |argument: &Argument<'a>| match *argument {
            Argument::Text(text) => Value::Text(Redacted(text)),
            Argument::Texts(texts) => Value::Texts(Redacted(texts)),
            Argument::Bytes(bytes) => Value::Bytes(Redacted(bytes)),
            Argument::ByteStrings(byte_strings) => Value::ByteStrings(Redacted(byte_strings)),
            Argument::Flags(flags) => Value::Flags(Redacted(flags)),
            Argument::Seconds(seconds) => Value::Seconds(Redacted(seconds)),
            Argument::Number(number) => Value::Number(Redacted(number)),
        };
        Statement { sql, values: arguments.iter().map(value).collect() }
    }
}

impl QueryFragment<Pg> for Statement<'_> {
    /// diesel numbers the parameters in order, so it writes the same text again, even if a table's name contains the text of
    /// a parameter.
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let mut rest = self.sql;
        for (value, position) in self.values.iter().zip(1..) {
            let Some((before, after)) = rest.split_once(&format!("${position}")) else {
                return Err(DieselError::QueryBuilderError("a parameter is missing".into()));
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

impl Query for Statement<'_> {
    type SqlType = Untyped;
}

/// diesel caches the prepared statement by its text.
impl QueryId for Statement<'_> {
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
