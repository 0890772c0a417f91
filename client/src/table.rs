use std::fmt;

use thiserror::Error;

/// Postgres cuts longer names silently, and would then name another table.
const NAME_LENGTH_MAX: usize = 63;

const DEFAULT_SCHEMA: &str = "public";

/// A table and its schema. Displays as SQL, always quoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    schema: String,
    table: String,
}

/// Why the name of a table or a schema was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name:?} cannot be used as a name: {reason}")]
pub struct TableNameError {
    name: String,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
enum Reason {
    #[error("write `table` or `schema.table`")]
    Parts,
    #[cfg(feature = "_modules")]
    #[error("write the schema alone")]
    Schema,
    #[error("a part of it is empty")]
    Empty,
    #[error("the part {0:?} has more than {NAME_LENGTH_MAX} bytes, which Postgres would cut off")]
    TooLong(String),
    #[error(
        "character {0:?} needs double quotes around its part, as in SQL; unquoted names have a-z 0-9 _ and do not begin with a digit"
    )]
    NeedsQuotes(char),
    #[error("a double quote is never closed")]
    Unclosed,
    #[error("Postgres has no names with the character U+0000")]
    Nul,
}

/// Reads the name of a schema, `app` or `"My App"`, and gives it as SQL, always quoted.
#[cfg(feature = "_modules")]
pub fn quoted_schema(name: &str) -> Result<String, TableNameError> {
    let refused = |reason| TableNameError { name: name.to_owned(), reason };
    match part(name).map_err(refused)? {
        (schema, None) => Ok(quoted(&schema)),
        (_, Some(_)) => Err(refused(Reason::Schema)),
    }
}

impl TableName {
    /// Reads `outbox`, `app.outbox` or `"My App".outbox`. Without a schema it is `public`, whatever the
    /// search_path: the application and the relay must mean the same table.
    pub fn parse(name: &str) -> Result<TableName, TableNameError> {
        parts(name).map_err(|reason| TableNameError { name: name.to_owned(), reason })
    }
}

fn parts(name: &str) -> Result<TableName, Reason> {
    let (first, rest) = part(name)?;
    let Some(rest) = rest else {
        return Ok(TableName { schema: DEFAULT_SCHEMA.to_owned(), table: first });
    };
    match part(rest)? {
        (table, None) => Ok(TableName { schema: first, table }),
        (_, Some(_)) => Err(Reason::Parts),
    }
}

/// The first part of a name, and what follows its dot.
fn part(name: &str) -> Result<(String, Option<&str>), Reason> {
    let (part, rest) = match name.strip_prefix('"') {
        Some(quoted) => quoted_part(quoted)?,
        None => {
            let end = name.find('.').unwrap_or(name.len());
            (unquoted_part(&name[..end])?, &name[end..])
        }
    };
    if part.is_empty() {
        return Err(Reason::Empty);
    }
    if part.contains('\0') {
        return Err(Reason::Nul);
    }
    if part.len() > NAME_LENGTH_MAX {
        return Err(Reason::TooLong(part));
    }
    match rest.strip_prefix('.') {
        Some(rest) => Ok((part, Some(rest))),
        None if rest.is_empty() => Ok((part, None)),
        None => Err(Reason::Parts),
    }
}

fn unquoted_part(part: &str) -> Result<String, Reason> {
    let legal =
        |(index, c): (usize, char)| c.is_ascii_lowercase() || c == '_' || (index > 0 && c.is_ascii_digit());
    match part.chars().enumerate().find(|&character| !legal(character)) {
        Some((_, character)) => Err(Reason::NeedsQuotes(character)),
        None => Ok(part.to_owned()),
    }
}

/// What stands before the closing quote, `""` read as `"`, and what follows it.
fn quoted_part(quoted: &str) -> Result<(String, &str), Reason> {
    let mut part = String::new();
    let mut rest = quoted;
    loop {
        let (before, after) = rest.split_once('"').ok_or(Reason::Unclosed)?;
        part.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                part.push('"');
                rest = after;
            }
            None => return Ok((part, after)),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        for (name, sql) in [
            ("outbox", r#""public"."outbox""#),
            ("app.outbox_2", r#""app"."outbox_2""#),
            ("user.order", r#""user"."order""#),
            (r#""My App".outbox"#, r#""My App"."outbox""#),
            (r#"app."a.b""#, r#""app"."a.b""#),
            (r#""say ""hi"""."o;--""#, r#""say ""hi"""."o;--""#),
        ] {
            assert_eq!(TableName::parse(name).expect(name).to_string(), sql);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let long = "x".repeat(64);
        for (name, reason) in [
            ("", Reason::Empty),
            ("app.", Reason::Empty),
            (".outbox", Reason::Empty),
            (r#""".outbox"#, Reason::Empty),
            ("db.app.outbox", Reason::Parts),
            (r#""app"outbox"#, Reason::Parts),
            (r#""app"#, Reason::Unclosed),
            ("App.outbox", Reason::NeedsQuotes('A')),
            ("1app", Reason::NeedsQuotes('1')),
            ("outbox; DROP TABLE orders", Reason::NeedsQuotes(';')),
            (r#"out"box"#, Reason::NeedsQuotes('"')),
            ("\"a\0\"", Reason::Nul),
            (&long, Reason::TooLong(long.clone())),
        ] {
            let refused = TableName::parse(name).expect_err(name);
            assert_eq!(refused, TableNameError { name: name.to_owned(), reason });
        }
    }

    #[cfg(feature = "_modules")]
    #[test]
    fn a_schema_is_one_name() {
        assert_eq!(quoted_schema("app"), Ok(r#""app""#.to_owned()));
        assert_eq!(quoted_schema(r#""My ""App""""#), Ok(r#""My ""App""""#.to_owned()));
        for (name, reason) in
            [("app.x", Reason::Schema), ("", Reason::Empty), ("App", Reason::NeedsQuotes('A'))]
        {
            assert_eq!(quoted_schema(name), Err(TableNameError { name: name.to_owned(), reason }));
        }
    }
}
