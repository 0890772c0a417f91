//! The name of the outbox table, and of everything that lives beside it.
//!
//! A user names one table; the lane table, the dead letters and the rest derive their names from it. SQL text is
//! written with placeholders (`{outbox}`, `{lane}`, ...) and [`TableName::render`]ed once.

use std::fmt;
use std::str::FromStr;

/// Postgres cuts longer identifiers silently, so two names could become one.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// What derives its name from the outbox table: the placeholder in SQL text, and the suffix of the name.
const DERIVED: [(&str, &str); 11] = [
    ("outbox", ""),
    ("lane", "_lane"),
    ("dead_letter", "_dead_letter"),
    ("hold", "_hold"),
    ("blocked_key", "_blocked_key"),
    ("pause", "_pause"),
    ("act", "_act"),
    ("hold_version", "_hold_version"),
    ("hold_changed", "_hold_changed"),
    ("enqueue", "_enqueue"),
    ("migration", "_migration"),
];

/// What the optional modules have beside the outbox, under fixed names: a schema has each of them once, whatever its
/// outbox is called. The placeholder is the name.
const OF_MODULES: [&str; 18] = [
    "pg_outbox_migration",
    "processed_message",
    "inbox_receive",
    "inbox_receive_many",
    "inbox_reap",
    "once_key",
    "once_claim",
    "once_reap",
    "idempotency_key",
    "idempotency_fingerprint",
    "idempotency_begin",
    "idempotency_finish",
    "idempotency_reach",
    "idempotency_extend",
    "idempotency_release",
    "idempotency_abandoned",
    "idempotency_reap",
    "idempotency_unfinished",
];

const PENDING_INDEX_SUFFIX: &str = "_pending";

/// The longest suffix of all, `_hold_changed` and `_hold_version`.
const SUFFIX_BYTES_MAX: usize = 13;

/// A schema and the name of the outbox table in it.
///
/// Parsed as SQL reads a name: `outbox` (in schema `public`), `app.outbox`, `"My Schema"."out""box"`. What is
/// not quoted is folded to lower case.
///
/// ```
/// use outbox_relay::postgres::table::TableName;
///
/// let table: TableName = "app.outbox".parse()?;
/// assert_eq!(table.quoted(), r#""app"."outbox""#);
/// assert_eq!(table.render("SELECT lane FROM {lane}"), r#"SELECT lane FROM "app"."outbox_lane""#);
/// # Ok::<(), outbox_relay::postgres::table::TableNameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: String,
    table: String,
}

/// Why a text does not name a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableNameError {
    /// A part is empty.
    #[error("the {0} name is empty: write `table` or `schema.table`")]
    Empty(&'static str),
    /// More than a schema and a table.
    #[error(
        "the name has more than two parts: write `table` or `schema.table`, and quote a name that holds a dot"
    )]
    TooManyParts,
    /// A character that needs quotes.
    #[error(
        "the character {0:?} needs quotes: write the name as \"schema\".\"table\", with each quote in it doubled"
    )]
    NeedsQuotes(char),
    /// The closing quote is missing.
    #[error("a quoted name does not end: add the closing quote")]
    Unterminated,
    /// Too long for Postgres.
    #[error("the {part} name has {bytes} bytes, at most {max} are possible: choose a shorter one")]
    TooLong {
        /// `schema` or `table`.
        part: &'static str,
        /// The length that was given.
        bytes: usize,
        /// The longest possible; for a table, what its derived names leave.
        max: usize,
    },
    /// A control character, or `$$`, which ends a function's body.
    #[error("the {0} name holds a control character or `$$`: choose another one")]
    Unsupported(&'static str),
}

impl TableName {
    /// The table `table` in `schema`, both taken as they are (nothing is unquoted or folded).
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> Result<Self, TableNameError> {
        let name = Self { schema: schema.into(), table: table.into() };
        check_part("schema", &name.schema, IDENTIFIER_BYTES_MAX)?;
        check_part("table", &name.table, IDENTIFIER_BYTES_MAX - SUFFIX_BYTES_MAX)?;
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

    /// The outbox table for SQL text: `"app"."outbox"`.
    pub fn quoted(&self) -> String {
        self.derived("")
    }

    /// The lane table, quoted.
    pub fn lane(&self) -> String {
        self.derived("_lane")
    }

    /// The dead-letter table, quoted.
    pub fn dead_letter(&self) -> String {
        self.derived("_dead_letter")
    }

    /// The table of held topics, quoted.
    pub fn hold(&self) -> String {
        self.derived("_hold")
    }

    /// The table of blocked keys, quoted.
    pub fn blocked_key(&self) -> String {
        self.derived("_blocked_key")
    }

    /// The table of what operators have paused, quoted.
    pub fn pause(&self) -> String {
        self.derived("_pause")
    }

    /// The table of what operators did, quoted.
    pub fn act(&self) -> String {
        self.derived("_act")
    }

    /// The table that counts changes of the holds, blocked keys and pauses, quoted.
    pub fn hold_version(&self) -> String {
        self.derived("_hold_version")
    }

    /// The trigger function that counts them, quoted.
    pub fn hold_changed(&self) -> String {
        self.derived("_hold_changed")
    }

    /// The function that inserts an event, quoted.
    pub fn enqueue(&self) -> String {
        self.derived("_enqueue")
    }

    /// The table that records the migrations, quoted.
    pub fn migration(&self) -> String {
        self.derived("_migration")
    }

    /// The pending index, quoted; without the schema, which `CREATE INDEX` does not accept.
    pub fn pending_index(&self) -> String {
        quote_identifier(&self.pending_index_name())
    }

    /// The pending index's name, unquoted.
    pub fn pending_index_name(&self) -> String {
        format!("{}{PENDING_INDEX_SUFFIX}", self.table)
    }

    /// The unquoted name of what a placeholder stands for, as the catalogue has it: `{lane}` -> `outbox_lane`.
    pub(crate) fn name_of(&self, placeholder: &str) -> String {
        let name = placeholder.trim_matches(['{', '}']);
        if OF_MODULES.contains(&name) {
            return name.to_owned();
        }
        let known = DERIVED.iter().find(|(known, _)| *known == name);
        format!("{}{}", self.table, known.map_or("", |(_, suffix)| suffix))
    }

    /// Something else in the same schema, as a person would write it.
    pub(crate) fn beside(&self, name: &str) -> String {
        format!("{}.{}", quote_if_needed(&self.schema), quote_if_needed(name))
    }

    /// Something else in the same schema, quoted.
    pub(crate) fn sibling(&self, name: &str) -> String {
        format!("{}.{}", quote_identifier(&self.schema), quote_identifier(name))
    }

    /// `template` with every `{placeholder}` replaced by the name it stands for.
    ///
    /// Templates are written in this crate; a test holds each to the known placeholders. Anything else in braces
    /// is left alone, because SQL text holds braces of its own.
    pub fn render(&self, template: &str) -> String {
        fill(template, |placeholder| self.value_of(placeholder))
    }

    /// What a placeholder, without its braces, stands for.
    pub(crate) fn value_of(&self, placeholder: &str) -> Option<String> {
        match placeholder {
            "pending_index" => Some(self.pending_index()),
            "schema" => Some(quote_identifier(&self.schema)),
            "schema_literal" => Some(quote_literal(&self.schema)),
            "outbox_literal" => Some(quote_literal(&self.quoted())),
            name if OF_MODULES.contains(&name) => Some(self.sibling(name)),
            _ => DERIVED
                .iter()
                .find_map(|(known, suffix)| (*known == placeholder).then(|| self.derived(suffix))),
        }
    }

    fn derived(&self, suffix: &str) -> String {
        self.sibling(&format!("{}{suffix}", self.table))
    }
}

/// As a person would write it, quoted only where SQL needs it; parses back to the same name.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quote_if_needed(&self.schema), quote_if_needed(&self.table))
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

/// `"name"`, with each quote in it doubled.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `'text'`, for a server with `standard_conforming_strings` on or off.
pub fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        format!("E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

/// `template` with every `{placeholder}` replaced that has a value. What is put in is not looked at again.
pub(crate) fn fill(template: &str, value_of: impl Fn(&str) -> Option<String>) -> String {
    let mut sql = String::with_capacity(template.len() + template.len() / 4);
    let mut rest = template;
    while let Some((before, placeholder, after)) = next_placeholder(rest) {
        sql.push_str(before);
        match value_of(placeholder) {
            Some(name) => sql.push_str(&name),
            None => sql.extend(["{", placeholder, "}"]),
        }
        rest = after;
    }
    sql.push_str(rest);
    sql
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
    // A line break would end the SQL comment that a name may stand in.
    if name.contains(char::is_control) || name.contains("$$") {
        return Err(TableNameError::Unsupported(part));
    }
    Ok(())
}

/// Reads one identifier; what follows the dot behind it, if there is one.
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

/// The text before the next `{lower_case}` placeholder, the placeholder's name, and the text behind it.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let open = from + text[from..].find('{')?;
        let name = text[open + 1..].split(|c: char| !c.is_ascii_lowercase() && c != '_').next()?;
        let close = open + 1 + name.len();
        if !name.is_empty() && text[close..].starts_with('}') {
            return Some((&text[..open], name, &text[close + 1..]));
        }
        from = open + 1;
    }
}

/// For the tests of templates: the placeholders in `template` that [`TableName::render`] does not know.
#[cfg(test)]
pub(crate) fn unknown_placeholders(template: &str) -> Vec<String> {
    let name = TableName::new("s", "t").unwrap();
    let mut unknown = Vec::new();
    let mut rest = template;
    while let Some((_, placeholder, after)) = next_placeholder(rest) {
        if name.value_of(placeholder).is_none() {
            unknown.push(placeholder.to_owned());
        }
        rest = after;
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> TableName {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_name_is_read_as_sql_reads_it() {
        for (text, schema, table) in [
            ("outbox", "public", "outbox"),
            ("app.outbox", "app", "outbox"),
            ("App.OutBox", "app", "outbox"),
            (r#""My Schema"."out""box""#, "My Schema", "out\"box"),
            (r#"app."out.box""#, "app", "out.box"),
            (r#""A".b"#, "A", "b"),
            ("größe.tür", "größe", "tür"),
        ] {
            let name = parsed(text);
            assert_eq!((name.schema(), name.table()), (schema, table), "{text}");
            assert_eq!(parsed(&name.to_string()), name, "{text} shown and parsed again");
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_reason() {
        use TableNameError::*;
        let long = "x".repeat(51);
        for (text, error) in [
            ("", Empty("table")),
            ("app.", Empty("table")),
            (".outbox", Empty("schema")),
            (r#""""#, Empty("table")),
            ("a.b.c", TooManyParts),
            ("my-app.outbox", NeedsQuotes('-')),
            ("app.out box", NeedsQuotes(' ')),
            ("1a.outbox", NeedsQuotes('1')),
            (r#""a"b"#, NeedsQuotes('b')),
            (r#""app.outbox"#, Unterminated),
            ("\"a\0b\"", Unsupported("table")),
            ("\"a\nb\".outbox", Unsupported("schema")),
            ("app.a$$b", Unsupported("table")),
            (&*long, TooLong { part: "table", bytes: 51, max: 50 }),
        ] {
            assert_eq!(text.parse::<TableName>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn every_derived_name_of_the_longest_table_fits() {
        let name = TableName::new("s".repeat(63), "t".repeat(50)).unwrap();
        for (placeholder, suffix) in DERIVED {
            assert!(name.table.len() + suffix.len() <= IDENTIFIER_BYTES_MAX, "{placeholder}");
        }
        assert!(name.pending_index_name().len() <= IDENTIFIER_BYTES_MAX);
    }

    #[test]
    fn render_replaces_names_once_and_leaves_other_braces() {
        let name = TableName::new("{lane}", "it's").unwrap();
        assert_eq!(
            name.render(r#"{outbox} {pending_index} {schema} {schema_literal} {unknown} '{"a": {}}' {"#),
            r#""{lane}"."it's" "it's_pending" "{lane}" '{lane}' {unknown} '{"a": {}}' {"#
        );
        assert_eq!(unknown_placeholders(r#"{outbox} {outbx} '{"a": 1}'"#), ["outbx"]);
    }

    #[test]
    fn a_literal_cannot_be_left() {
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal(r"\'"), r"E'\\'''");
    }
}
