use std::fmt;

use thiserror::Error;

/// PostgreSQL truncates longer names silently, so they could name another table.
const NAME_LENGTH_MAX: usize = 63;

const DEFAULT_SCHEMA: &str = "public";

/// A table and its schema. Displays as SQL, always quoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    schema: String,
    table: String,
}

/// Why the name of a table or a schema is invalid.
///
/// ```
/// let error: pg_outbox::TableNameError = match pg_outbox::Outbox::new("app.Outbox") {
///     Err(pg_outbox::Error::TableName(error)) => error, // upper case needs quotes
///     other => panic!("{other:?}"),
/// };
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name:?} is not a valid name: {reason}")]
pub struct TableNameError {
    name: String,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
enum Reason {
    #[error("it must have the form `table` or `schema.table`")]
    Parts,
    #[error("it must be a schema without a table")]
    Schema,
    #[error("a part is empty")]
    Empty,
    #[error("the part {0:?} has more than {NAME_LENGTH_MAX} bytes, so PostgreSQL would truncate it")]
    TooLong(String),
    #[error(
        "the character {0:?} needs double quotes around its part, as in SQL. Unquoted names can contain a-z 0-9 _ and \
         cannot start with a digit"
    )]
    NeedsQuotes(char),
    #[error("the closing double quote is missing")]
    Unclosed,
    #[error("PostgreSQL does not allow the character U+0000 in names")]
    Nul,
}

/// Parses the name of a schema, `app` or `"My App"`. Returns it as SQL, always quoted.
pub fn quoted_schema(name: &str) -> Result<String, TableNameError> {
    let refused = |reason| TableNameError { name: name.to_owned(), reason };
    match part(name).map_err(refused)? {
        (schema, None) => Ok(quoted(&schema)),
        (_, Some(_)) => Err(refused(Reason::Schema)),
    }
}

impl TableName {
    /// Parses `outbox`, `app.outbox` or `"My App".outbox`. The default schema is `public`, regardless of the search_path, so
    /// that the application and the relay use the same table.
    pub fn parse(name: &str) -> Result<TableName, TableNameError> {
        let refused = |reason| TableNameError { name: name.to_owned(), reason };
        let (first, rest) = part(name).map_err(refused)?;
        let Some(rest) = rest else {
            return Ok(TableName { schema: DEFAULT_SCHEMA.to_owned(), table: first });
        };
        match part(rest).map_err(refused)? {
            (table, None) => Ok(TableName { schema: first, table }),
            (_, Some(_)) => Err(refused(Reason::Parts)),
        }
    }

    /// The schema, without quotes.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table, without quotes and schema.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// As SQL, a name of the same schema that begins with the table's name: `outbox_lane`.
    pub fn with_suffix(&self, suffix: &str) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&format!("{}{suffix}", self.table)))
    }
}

/// The first part of a name, and the rest after the dot.
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

/// The text before the closing quote, with `""` replaced by `"`, and the rest.
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
    fn invalid_names_are_rejected() {
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

    #[test]
    fn a_schema_is_a_single_name() {
        assert_eq!(quoted_schema("app"), Ok(r#""app""#.to_owned()));
        assert_eq!(quoted_schema(r#""My ""App""""#), Ok(r#""My ""App""""#.to_owned()));
        for (name, reason) in
            [("app.x", Reason::Schema), ("", Reason::Empty), ("App", Reason::NeedsQuotes('A'))]
        {
            assert_eq!(quoted_schema(name), Err(TableNameError { name: name.to_owned(), reason }));
        }
    }
}
