//! The name of the outbox table, with the names of its columns, and the names that derive from it in SQL.
//!
//! Statements contain variables (`:outbox`, `:lane`, ...), or placeholders (`{outbox}`) that [`TableName::render`] replaces.
//! `[outbox.columns]` can give the columns other names than the standard ones. Statements that read the outbox take its rows from
//! [`TableName::rows`], which has the standard names. Statements that change rows need the table itself, and name its columns with
//! [`TableName::column`], or with `:id_column`, `:sent_at_column` and so on. With the standard names, both are exactly the names
//! that the statement would otherwise have.

use crate::columns::{Column, Columns};
use crate::is_in;
use settings::choice;
use std::fmt;
use std::str::FromStr;

/// PostgreSQL truncates longer identifiers silently, so two names could become the same.
pub(crate) const IDENTIFIER_BYTES_MAX: usize = 63;

/// Leaves room for the longest suffix of a derived name, `_hold_changed`.
const TABLE_BYTES_MAX: usize = IDENTIFIER_BYTES_MAX - 13;

/// A schema and the name of the outbox table in it.
///
/// Parsed like a name in SQL: `outbox` (in schema `public`), `app.outbox`, `"My Schema"."out""box"`. Unquoted parts are
/// folded to lower case.
///
/// ```
/// use outbox_relay_postgres::table::TableName;
///
/// let table: TableName = "app.outbox".parse()?;
/// assert_eq!(table.quoted(), r#""app"."outbox""#);
/// assert_eq!(table.render("SELECT lane FROM {lane}"), r#"SELECT lane FROM "app"."outbox_lane""#);
/// # Ok::<(), outbox_relay_postgres::table::TableNameError>(())
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
    #[error("the {0} name is empty. Write `table` or `schema.table`")]
    Empty(&'static str),
    #[error(
        "the name has more than two parts. Write `table` or `schema.table`, and quote a part that contains a dot"
    )]
    TooManyParts,
    #[error(
        "the character {0:?} needs quotes. Write the name as \"schema\".\"table\", and double each quote in it"
    )]
    NeedsQuotes(char),
    #[error("the closing quote is missing")]
    Unterminated,
    #[error("the {part} name has {bytes} bytes, but the maximum is {max}")]
    TooLong { part: &'static str, bytes: usize, max: usize },
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

    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table's name, unquoted and without its schema.
    pub fn table(&self) -> &str {
        &self.table
    }

    #[must_use]
    pub fn with_columns(self, columns: Columns) -> Self {
        Self { columns, ..self }
    }

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

    /// The outbox table for SQL text: `"app"."outbox"`.
    pub fn quoted(&self) -> String {
        self.sibling(self.table())
    }

    /// The pending index's name, unquoted.
    pub(crate) fn pending_index_name(&self) -> String {
        format!("{}_pending", self.table())
    }

    /// The name of a placeholder, unquoted, as in the system catalogs: `{lane}` becomes `outbox_lane`.
    pub fn name_of(&self, placeholder: &str) -> String {
        match placeholder.trim_matches(['{', '}']) {
            name if is_in(MODULE_NAMES, name) => name.to_owned(),
            name if is_in(DERIVED, name) => format!("{}_{name}", self.table()),
            _ => self.table().to_owned(),
        }
    }

    /// A name in the same schema, quoted.
    pub(crate) fn sibling(&self, name: &str) -> String {
        format!("{}.{}", quote_identifier(self.schema()), quote_identifier(name))
    }

    /// `template` with every known `{placeholder}` replaced. Other braces stay, because SQL contains braces too.
    pub fn render(&self, template: &str) -> String {
        fill(template, |placeholder| self.value_of(placeholder))
    }

    /// The value of a placeholder, given without braces.
    pub(crate) fn value_of(&self, placeholder: &str) -> Option<String> {
        match placeholder {
            // Without the schema: `CREATE INDEX` does not accept one.
            "pending_index" => Some(quote_identifier(&self.pending_index_name())),
            "schema" => Some(quote_identifier(self.schema())),
            "schema_literal" => Some(quote_literal(self.schema())),
            "id_literal" => Some(quote_literal(self.columns().name(Column::Id))),
            "rows" => Some(self.rows(false)),
            // For a FROM clause without an alias.
            "named_rows" if self.columns.are_standard() => Some(self.rows(false)),
            "named_rows" => Some(self.rows(false) + " AS events"),
            "whole_event" => Some(self.whole_event()),
            name if is_in(MODULE_NAMES, name) => Some(self.sibling(name)),
            name if name.ends_with("_literal") => {
                Some(quote_literal(&self.value_of(name.trim_end_matches("_literal"))?))
            }
            "outbox" => Some(self.quoted()),
            name if is_in(DERIVED, name) => Some(self.sibling(&self.name_of(name))),
            _ => Some(self.column(Column::named(placeholder.strip_suffix("_column")?)?)),
        }
    }

    /// The column for SQL text. A standard name needs no quotes.
    pub(crate) fn column(&self, column: Column) -> String {
        if self.columns().is_renamed(column) {
            quote_identifier(self.columns().name(column))
        } else {
            column.name().to_owned()
        }
    }

    /// The column of a row `o` of the table itself.
    pub(crate) fn column_of_row(&self, column: Column) -> String {
        format!("o.{}", self.column(column))
    }

    /// The same as output columns with the standard names.
    fn outputs(&self, columns: impl Iterator<Item = Column>) -> String {
        let output = |column| {
            let of_row = self.column_of_row(column);
            if self.columns().is_renamed(column) { format!("{of_row} AS {column}") } else { of_row }
        };
        columns.map(output).collect::<Vec<_>>().join(", ")
    }

    /// Every column of an event except `sent_at` and `topic`, with the standard names, of a row `o` of the table itself.
    fn whole_event(&self) -> String {
        let of_event = |column: &Column| !matches!(column, Column::SentAt | Column::Topic);
        self.outputs(Column::ALL.into_iter().filter(of_event))
    }

    /// The rows of the outbox in a FROM clause, followed by an alias. Its columns have the standard names. The planner
    /// replaces the subquery with the table. The alias `o` inside is the one that the plan shows. PostgreSQL requires the SELECT
    /// privilege on each of its columns, so those that monitoring may not read are only in [`TableName::whole_rows`].
    pub(crate) fn rows(&self, with_topic: bool) -> String {
        let is_readable = |column: &Column| match column {
            Column::Topic => with_topic,
            column => !matches!(column, Column::Payload | Column::Headers),
        };
        self.named(&self.outputs(Column::ALL.into_iter().filter(is_readable)))
    }

    /// The same with `payload`, `headers` and `ctid`.
    pub(crate) fn whole_rows(&self, with_topic: bool) -> String {
        let columns = Column::ALL.into_iter().filter(|column| with_topic || *column != Column::Topic);
        self.named(&(self.outputs(columns) + ", o.ctid"))
    }

    fn named(&self, columns: &str) -> String {
        let table = self.quoted();
        if self.columns().are_standard() { table } else { format!("(SELECT {columns} FROM {table} o)") }
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

choice! {
    /// An optional part of the schema, for APIs and consumers. Its name in commands is that of its folder in `sql/`.
    #[derive(PartialOrd, Ord)]
    Module {
        /// For consumers: the processed events of each subscriber.
        Inbox = "inbox",
        /// For APIs: requests with idempotency keys, and their responses.
        Idempotency = "idempotency",
        /// Claims of keys for a limited time.
        Once = "once",
    }
}

impl FromStr for Module {
    type Err = String;

    fn from_str(text: &str) -> Result<Module, String> {
        let unknown = || format!("unknown module {text:?}. The modules are inbox, idempotency and once");
        Module::named(text).ok_or_else(unknown)
    }
}

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
        let mut rest = after.chars();
        match rest.next() {
            Some('"') => name.push('"'),
            Some('.') => return Ok((name, Some(rest.as_str()))),
            Some(c) => return Err(TableNameError::NeedsQuotes(c)),
            None => return Ok((name, None)),
        }
        quoted = rest.as_str();
    }
}

fn parse_plain(text: &str) -> Result<(String, Option<&str>), TableNameError> {
    let (name, rest) = text.split_once('.').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii() && !c.is_control();
    let continues = |c: char| starts(c) || c.is_ascii_digit() || c == '$';
    let unfit = name.char_indices().find(|&(at, c)| if at == 0 { !starts(c) } else { !continues(c) });
    match unfit {
        Some((_, c)) => Err(TableNameError::NeedsQuotes(c)),
        None => Ok((name.to_ascii_lowercase(), rest)),
    }
}

/// Names that derive from the outbox table: its name, an underscore, and one of these, which is also the placeholder.
const DERIVED: &str = "\
    lane dead_letter hold blocked_key pause act act_recorded record_act reaper hold_version hold_changed \
    enqueue setting template wait migration";

/// Fixed names, which a schema has at most once: the tables and functions of the optional modules. The placeholder is the
/// name.
pub(crate) const MODULE_NAMES: &str = "\
    pg_outbox_migration processed_message inbox_service inbox_owner inbox_receive inbox_receive_many \
    inbox_reap once_key once_service once_owner once_claim once_reap idempotency_key idempotency_service \
    idempotency_owner idempotency_fingerprint idempotency_begin idempotency_finish idempotency_reach \
    idempotency_extend idempotency_release idempotency_abandoned idempotency_reap idempotency_unfinished";

/// `'text'`, whether `standard_conforming_strings` is on or off.
pub(crate) fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        format!("E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

/// `template` with every `{placeholder}` replaced for which `value_of` returns a value. Values are not expanded again.
pub(crate) fn fill(template: &str, value_of: impl Fn(&str) -> Option<String>) -> String {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let mut sql = String::with_capacity(template.len() + template.len() / 4);
    let mut rest = template;
    while let Some((before, from)) = rest.split_once('{') {
        sql.push_str(before);
        let placeholder = from.split_once('}').filter(|(name, _)| is_name(name));
        match placeholder.and_then(|(name, after)| Some((value_of(name)?, after))) {
            Some((value, after)) => {
                sql.push_str(&value);
                rest = after;
            }
            None => {
                sql.push('{');
                rest = from;
            }
        }
    }
    sql + rest
}

/// The placeholders in `template` that [`TableName::render`] does not know.
#[cfg(test)]
pub(crate) fn unknown_placeholders(template: &str) -> Vec<String> {
    let (name, unknown) = (TableName::new("s", "t").unwrap(), std::cell::RefCell::new(Vec::new()));
    fill(template, |placeholder| {
        let value = name.value_of(placeholder);
        unknown.borrow_mut().extend(value.is_none().then(|| placeholder.to_owned()));
        value
    });
    unknown.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_round_trip() {
        for module in Module::ALL {
            assert_eq!(module.to_string().parse(), Ok(module));
        }
        let unknown = "unknown module \"outbox\". The modules are inbox, idempotency and once";
        assert_eq!("outbox".parse::<Module>(), Err(unknown.to_owned()));
    }

    #[test]
    fn names_derived_from_the_longest_table_name_fit() {
        let name = TableName::new("s".repeat(63), "t".repeat(50)).unwrap();
        for placeholder in DERIVED.split(' ') {
            assert!(name.name_of(placeholder).len() <= IDENTIFIER_BYTES_MAX, "{placeholder}");
        }
        assert!(name.pending_index_name().len() <= IDENTIFIER_BYTES_MAX);
    }

    #[test]
    fn render_replaces_names_once_and_keeps_other_braces() {
        let name = TableName::new("{lane}", "it's").unwrap();
        assert_eq!(
            name.render(r#"{outbox} {pending_index} {schema} {schema_literal} {unknown} '{"a": {}}' {"#),
            r#""{lane}"."it's" "it's_pending" "{lane}" '{lane}' {unknown} '{"a": {}}' {"#
        );
        assert_eq!(unknown_placeholders(r#"{outbox} {outbx} '{"a": 1}'"#), ["outbx"]);
    }

    #[test]
    fn literals_escape_quotes_and_backslashes() {
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal(r"\'"), r"E'\\'''");
    }

    fn renamed_table() -> TableName {
        TableName::new("app", "events").unwrap()
    }

    #[test]
    fn standard_names_leave_statements_as_they_are() {
        let sql = "{rows} o, {named_rows}, {sent_at_column}, {whole_event}";
        let expected = "\"app\".\"events\" o, \"app\".\"events\", sent_at, o.id, o.event_id, o.aggregate_type, \
                        o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at";
        assert_eq!(renamed_table().render(sql), expected);
        assert_eq!(renamed_table().rows(true), "\"app\".\"events\"");
    }

    #[test]
    fn renamed_columns_are_quoted_and_rows_have_the_standard_names() {
        let names = [
            (Column::Id, "seq"),
            (Column::EventId, "id"),
            (Column::SentAt, "sent\"at"),
            (Column::Topic, "t"),
        ];
        let names = names.map(|(column, name)| (column, name.to_owned()));
        let table = renamed_table().with_columns(Columns::new(names));
        assert_eq!(
            table.render("{id_column} {sent_at_column} {payload_column}"),
            "\"seq\" \"sent\"\"at\" payload"
        );
        let rows = "(SELECT o.\"seq\" AS id, o.\"id\" AS event_id, o.aggregate_type, o.aggregate_id, o.event_type, \
                    o.created_at, o.\"sent\"\"at\" AS sent_at";
        assert_eq!(table.rows(false), format!("{rows} FROM \"app\".\"events\" o)"));
        assert_eq!(table.rows(true), format!("{rows}, o.\"t\" AS topic FROM \"app\".\"events\" o)"));
        let whole = rows.replace("o.created_at", "o.payload, o.headers, o.created_at");
        assert_eq!(table.whole_rows(false), format!("{whole}, o.ctid FROM \"app\".\"events\" o)"));
        assert_eq!(table.render("{named_rows}"), format!("{} AS events", table.rows(false)));
        assert!(table.whole_event().starts_with("o.\"seq\" AS id, o.\"id\" AS event_id, o.aggregate_type,"));
    }
}
