//! The name of the outbox table, with the names of its columns.

use std::fmt;
use std::str::FromStr;

use crate::column_names::Columns;

/// PostgreSQL truncates longer identifiers silently, so two names could become the same.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Leaves room for the longest suffix of a derived name, `_hold_changed`.
const TABLE_BYTES_MAX: usize = IDENTIFIER_BYTES_MAX - 13;

/// A schema and the name of the outbox table in it.
///
/// Parsed like a name in SQL: `outbox` (in schema `public`), `app.outbox`, `"My Schema"."out""box"`. Unquoted parts are
/// folded to lower case.
///
/// ```
/// use postgres::table::TableName;
///
/// let table: TableName = "app.outbox".parse()?;
/// assert_eq!(table.quoted(), r#""app"."outbox""#);
/// assert_eq!(table.render("SELECT lane FROM {lane}"), r#"SELECT lane FROM "app"."outbox_lane""#);
/// # Ok::<(), postgres::table_name::TableNameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: String,
    table: String,
    /// Not part of the name as text. It is here so that no statement can use the table without the names of its columns.
    columns: Columns,
}

/// Why a text is not the name of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableNameError {
    /// A part is empty.
    #[error("the {0} name is empty. Write `table` or `schema.table`")]
    Empty(&'static str),
    /// More than a schema and a table.
    #[error(
        "the name has more than two parts. Write `table` or `schema.table`, and quote a part that contains a dot"
    )]
    TooManyParts,
    /// A character that needs quotes.
    #[error(
        "the character {0:?} needs quotes. Write the name as \"schema\".\"table\", and double each quote in it"
    )]
    NeedsQuotes(char),
    /// The closing quote is missing.
    #[error("the closing quote is missing")]
    Unterminated,
    /// Too long for PostgreSQL.
    #[error("the {part} name has {bytes} bytes, but the maximum is {max}")]
    TooLong {
        /// `schema` or `table`.
        part: &'static str,
        /// The length.
        bytes: usize,
        /// The maximum length. For a table, it leaves room for derived names.
        max: usize,
    },
    /// A control character, or `$$`, which would end the body of a function.
    #[error("the {0} name contains a control character or `$$`. Choose another name")]
    Unsupported(&'static str),
}

impl TableName {
    /// The table `table` in `schema`, both used literally, without unquoting or folding.
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> Result<Self, TableNameError> {
        let name = Self { schema: schema.into(), table: table.into(), columns: Columns::default() };
        check_part("schema", &name.schema, IDENTIFIER_BYTES_MAX)?;
        check_part("table", &name.table, TABLE_BYTES_MAX)?;
        Ok(name)
    }

    /// The schema's name, unquoted.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table's name, unquoted and without its schema.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The same table, with these names of its columns.
    #[must_use]
    pub fn with_columns(self, columns: Columns) -> Self {
        Self { columns, ..self }
    }

    /// The names of its columns.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Whether both name the same table, whatever the names of the columns.
    pub fn is_same_table(&self, other: &TableName) -> bool {
        (&self.schema, &self.table) == (&other.schema, &other.table)
    }

    /// A name in the same schema, quoted only where SQL needs it.
    pub fn display_sibling(&self, name: &str) -> String {
        format!("{}.{}", quote_if_needed(&self.schema), quote_if_needed(name))
    }

    /// The table's name with a suffix and without its schema, quoted only where SQL needs it.
    pub(crate) fn display_derived(&self, suffix: &str) -> String {
        quote_if_needed(&format!("{}{suffix}", self.table))
    }
}

/// Quoted only where SQL needs it. Parses back to the same name.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_sibling(&self.table))
    }
}

impl FromStr for TableName {
    type Err = TableNameError;

    fn from_str(text: &str) -> Result<Self, TableNameError> {
        let (first, rest) = parse_part(text.trim())?;
        let Some(rest) = rest else { return Self::new("public", first) };
        let (second, rest) = parse_part(rest)?;
        if rest.is_some() {
            return Err(TableNameError::TooManyParts);
        }
        Self::new(first, second)
    }
}

settings::value_from_str!(TableName);

/// `"name"`, with each quote in it doubled.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn quote_if_needed(name: &str) -> String {
    let plain = parse_part(name).is_ok_and(|(parsed, rest)| parsed == name && rest.is_none());
    if plain { name.to_owned() } else { quote_identifier(name) }
}

fn check_part(part: &'static str, name: &str, max: usize) -> Result<(), TableNameError> {
    if name.is_empty() {
        return Err(TableNameError::Empty(part));
    }
    if name.len() > max {
        return Err(TableNameError::TooLong { part, bytes: name.len(), max });
    }
    // A line break would end an SQL comment that contains the name.
    if name.contains(char::is_control) || name.contains("$$") {
        return Err(TableNameError::Unsupported(part));
    }
    Ok(())
}

/// Reads one identifier. Returns it, and the text after the dot that follows it, if there is one.
fn parse_part(text: &str) -> Result<(String, Option<&str>), TableNameError> {
    let Some(mut quoted) = text.strip_prefix('"') else { return parse_plain(text) };
    let mut name = String::new();
    loop {
        let (before, after) = quoted.split_once('"').ok_or(TableNameError::Unterminated)?;
        name.push_str(before);
        if let Some(more) = after.strip_prefix('"') {
            name.push('"');
            quoted = more;
            continue;
        }
        return match after.strip_prefix('.') {
            Some(rest) => Ok((name, Some(rest))),
            None => match after.chars().next() {
                None => Ok((name, None)),
                Some(c) => Err(TableNameError::NeedsQuotes(c)),
            },
        };
    }
}

fn parse_plain(text: &str) -> Result<(String, Option<&str>), TableNameError> {
    let (name, rest) = match text.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (text, None),
    };
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii() && !c.is_control();
    let continues = |c: char| starts(c) || c.is_ascii_digit() || c == '$';
    let unfit = name.char_indices().find(|&(at, c)| if at == 0 { !starts(c) } else { !continues(c) });
    match unfit {
        Some((_, c)) => Err(TableNameError::NeedsQuotes(c)),
        None => Ok((name.to_ascii_lowercase(), rest)),
    }
}
