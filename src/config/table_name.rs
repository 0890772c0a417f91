//! The name of the outbox table and of the tables beside it.

use std::fmt;
use std::str::FromStr;

/// Postgres cuts longer names silently.
const NAME_BYTES_MAX: usize = 63;
/// The longest suffix of a related table: two tables must not be cut to the same name.
const LONGEST_SUFFIX: &str = "_dead_letter";

/// A table with its schema, both exactly as Postgres stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// The schema, without quotes.
    pub schema: String,
    /// The table, without quotes.
    pub table: String,
}

impl TableName {
    /// `"schema"."table"`, safe to put into SQL.
    pub fn quoted(&self) -> String {
        format!("{}.{}", quote(&self.schema), quote(&self.table))
    }

    /// A table that belongs to this one: `related("lane")` is `"schema"."table_lane"`.
    pub fn related(&self, suffix: &str) -> String {
        format!("{}.{}", quote(&self.schema), quote(&format!("{}_{suffix}", self.table)))
    }
}

impl fmt::Display for TableName {
    /// For people; [`TableName::quoted`] is for SQL.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.schema, self.table)
    }
}

/// Why a text is not the name of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTableName {
    /// There is no schema, or there are too many parts.
    #[error("it must be `schema.table`, for instance \"public.outbox\"")]
    Parts,
    /// A part is not an identifier.
    #[error("{0:?} is not a plain SQL name; letters, digits and _ need no quotes, other names need \"...\"")]
    Identifier(String),
    /// A part is too long.
    #[error("{0:?} is longer than {1} bytes, so Postgres would cut it or the names of its related tables")]
    Long(String, usize),
}

impl FromStr for TableName {
    type Err = BadTableName;

    /// Reads a name as Postgres does: without quotes it is folded to lower case, with quotes it is taken as it is.
    fn from_str(text: &str) -> Result<TableName, BadTableName> {
        let (schema, rest) = identifier(text)?;
        let rest = rest.strip_prefix('.').ok_or(BadTableName::Parts)?;
        let (table, rest) = identifier(rest)?;
        if !rest.is_empty() {
            return Err(BadTableName::Parts);
        }
        let table_bytes_max = NAME_BYTES_MAX - LONGEST_SUFFIX.len();
        for (name, bytes_max) in [(&schema, NAME_BYTES_MAX), (&table, table_bytes_max)] {
            if name.len() > bytes_max {
                return Err(BadTableName::Long(name.clone(), bytes_max));
            }
        }
        Ok(TableName { schema, table })
    }
}

/// Takes one identifier off the front.
fn identifier(text: &str) -> Result<(String, &str), BadTableName> {
    let bad = || BadTableName::Identifier(text.to_owned());
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find('.').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let mut characters = name.chars();
        let first = characters.next().ok_or(BadTableName::Parts)?;
        let plain = (first.is_ascii_alphabetic() || first == '_')
            && characters.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
        return if plain {
            Ok((name.to_ascii_lowercase(), rest))
        } else {
            Err(BadTableName::Identifier(name.into()))
        };
    };
    let mut name = String::new();
    loop {
        let (part, after) = rest.split_once('"').ok_or_else(bad)?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None if name.is_empty() || name.contains('\0') => return Err(bad()),
            None => return Ok((name, after)),
        }
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_and_quoted_as_postgres_does() {
        for (text, quoted) in [
            ("public.outbox", r#""public"."outbox""#),
            ("App.Outbox", r#""app"."outbox""#),
            (r#""My App".outbox"#, r#""My App"."outbox""#),
            (r#"app."out""box.v2""#, r#""app"."out""box.v2""#),
        ] {
            assert_eq!(text.parse::<TableName>().unwrap().quoted(), quoted, "{text}");
        }
    }

    #[test]
    fn related_tables_stay_in_the_schema() {
        let name: TableName = "app.outbox".parse().unwrap();
        assert_eq!(name.related("lane"), r#""app"."outbox_lane""#);
    }

    #[test]
    fn what_is_no_table_name_is_refused() {
        let long = format!("app.{}", "x".repeat(52));
        for text in [
            "",
            "outbox",
            "a.b.c",
            "app.",
            ".outbox",
            "app.out box",
            "app.1x",
            "app;drop.x",
            "\"\".x",
            "\"a.b",
            &long,
        ] {
            assert!(text.parse::<TableName>().is_err(), "{text}");
        }
    }
}
