use std::fmt;

use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::result::Error as DieselError;
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::{Array, Binary, Bool, Double, Integer, Nullable, Text, Untyped};

use crate::call::Argument;

/// SQL with its arguments. `diesel::sql_query` would be prepared anew for each call, this is prepared once a connection:
/// the texts are few, and the same each time.
pub struct Statement<'a> {
    sql: &'a str,
    values: Vec<Value<'a>>,
}

enum Value<'a> {
    Text(Unseen<&'a str>),
    Texts(Unseen<&'a [&'a str]>),
    Bytes(Unseen<Option<&'a [u8]>>),
    ByteStrings(Unseen<&'a [&'a [u8]]>),
    Flags(Unseen<&'a [bool]>),
    Seconds(Unseen<f64>),
    Number(Unseen<i32>),
}

/// diesel shows values to whatever instruments the connection; these are none of its business.
struct Unseen<T>(T);

impl<'a> Statement<'a> {
    pub fn new(sql: &'a str, arguments: &[Argument<'a>]) -> Statement<'a> {
        let value = |argument: &Argument<'a>| match *argument {
            Argument::Text(text) => Value::Text(Unseen(text)),
            Argument::Texts(texts) => Value::Texts(Unseen(texts)),
            Argument::Bytes(bytes) => Value::Bytes(Unseen(bytes)),
            Argument::ByteStrings(byte_strings) => Value::ByteStrings(Unseen(byte_strings)),
            Argument::Flags(flags) => Value::Flags(Unseen(flags)),
            Argument::Seconds(seconds) => Value::Seconds(Unseen(seconds)),
            Argument::Number(number) => Value::Number(Unseen(number)),
        };
        Statement { sql, values: arguments.iter().map(value).collect() }
    }
}

impl QueryFragment<Pg> for Statement<'_> {
    /// diesel numbers the parameters itself, in the order in which they come: what it writes is the text as it was,
    /// even if such a text is first met in a table's name.
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

/// The text is what diesel keeps the prepared statement under.
impl QueryId for Statement<'_> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Sql, T: ToSql<Sql, Pg>> ToSql<Sql, Pg> for Unseen<T> {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        self.0.to_sql(out)
    }
}

impl<T> fmt::Debug for Unseen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}
