//! Statements and rows, for diesel and diesel-async.

mod statement;

use diesel::QueryResult;
use diesel::deserialize::FromSql;
use diesel::pg::Pg;
use diesel::result::Error as DieselError;
use diesel::row::{Field, Row};
use diesel::sql_types::{Array, Binary, Bool, Double, Integer, Nullable, Text};

use crate::call::{Answer, Call, Column, Kind};

pub use statement::Statement;

pub fn answer<'a>(call: &Call, row: &impl Row<'a, Pg>) -> QueryResult<Answer> {
    let columns = call.columns().iter().enumerate().map(|(index, kind)| column(row, index, *kind));
    Ok(Answer::new(columns.collect::<QueryResult<_>>()?))
}

fn column<'a>(row: &impl Row<'a, Pg>, index: usize, kind: Kind) -> QueryResult<Column> {
    Ok(match kind {
        Kind::Text => Column::Text(value::<Nullable<Text>, _>(row, index)?),
        Kind::Bytes => Column::Bytes(value::<Nullable<Binary>, _>(row, index)?),
        Kind::Flag => Column::Flag(value::<Bool, _>(row, index)?),
        Kind::Flags => Column::Flags(value::<Array<Bool>, _>(row, index)?),
        Kind::Seconds => Column::Seconds(value::<Nullable<Double>, _>(row, index)?),
        Kind::Number => Column::Number(value::<Nullable<Integer>, _>(row, index)?),
    })
}

fn value<'a, Sql, T: FromSql<Sql, Pg>>(row: &impl Row<'a, Pg>, index: usize) -> QueryResult<T> {
    let field =
        row.get(index).ok_or_else(|| DieselError::DeserializationError("a column is missing".into()))?;
    T::from_nullable_sql(field.value()).map_err(DieselError::DeserializationError)
}
