//! Names in SQL.
//!
//! The user names the outbox table. The names of the other tables derive from it. Statements contain placeholders
//! (`{outbox}`, `{lane}`, ...), which [`TableName::render`] replaces. For the columns of the outbox, see
//! [`columns`](crate::columns).

pub use crate::column_names::{COLUMNS, Column, Columns};
pub use crate::table_name::{TableName, TableNameError, quote_identifier};

/// Placeholders of names that derive from the outbox table, with the suffix of each name.
const DERIVED: [(&str, &str); 17] = [
    ("outbox", ""),
    ("lane", "_lane"),
    ("dead_letter", "_dead_letter"),
    ("hold", "_hold"),
    ("blocked_key", "_blocked_key"),
    ("pause", "_pause"),
    ("act", "_act"),
    ("act_recorded", "_act_recorded"),
    ("record_act", "_record_act"),
    ("reaper", "_reaper"),
    ("hold_version", "_hold_version"),
    ("hold_changed", "_hold_changed"),
    ("enqueue", "_enqueue"),
    ("setting", "_setting"),
    ("template", "_template"),
    ("wait", "_wait"),
    ("migration", "_migration"),
];

/// Fixed names, which a schema has at most once: the tables and functions of the optional modules. The placeholder is the
/// name.
pub(crate) const MODULE_NAMES: [&str; 24] = [
    "pg_outbox_migration",
    "processed_message",
    "inbox_service",
    "inbox_owner",
    "inbox_receive",
    "inbox_receive_many",
    "inbox_reap",
    "once_key",
    "once_service",
    "once_owner",
    "once_claim",
    "once_reap",
    "idempotency_key",
    "idempotency_service",
    "idempotency_owner",
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

impl TableName {
    /// The outbox table for SQL text: `"app"."outbox"`.
    pub fn quoted(&self) -> String {
        self.derived("")
    }

    /// The lane table, quoted.
    pub(crate) fn lane(&self) -> String {
        self.derived("_lane")
    }

    /// The dead-letter table, quoted.
    pub(crate) fn dead_letter(&self) -> String {
        self.derived("_dead_letter")
    }

    /// The table of held topics, quoted.
    pub(crate) fn hold(&self) -> String {
        self.derived("_hold")
    }

    /// The table of blocked keys, quoted.
    pub(crate) fn blocked_key(&self) -> String {
        self.derived("_blocked_key")
    }

    /// The table of pauses, quoted.
    pub(crate) fn pause(&self) -> String {
        self.derived("_pause")
    }

    /// The table that counts changes of holds, blocked keys and pauses, quoted.
    pub(crate) fn hold_version(&self) -> String {
        self.derived("_hold_version")
    }

    /// The pending index, quoted, without the schema: `CREATE INDEX` does not accept one.
    pub(crate) fn pending_index(&self) -> String {
        quote_identifier(&self.pending_index_name())
    }

    /// The pending index's name, unquoted.
    pub(crate) fn pending_index_name(&self) -> String {
        format!("{}{PENDING_INDEX_SUFFIX}", self.table())
    }

    /// The name of a placeholder, unquoted, as in the system catalogs: `{lane}` becomes `outbox_lane`.
    pub fn name_of(&self, placeholder: &str) -> String {
        let name = placeholder.trim_matches(['{', '}']);
        if MODULE_NAMES.contains(&name) {
            return name.to_owned();
        }
        let known = DERIVED.iter().find(|(known, _)| *known == name);
        format!("{}{}", self.table(), known.map_or("", |(_, suffix)| suffix))
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
            "pending_index" => Some(self.pending_index()),
            "schema" => Some(quote_identifier(self.schema())),
            "schema_literal" => Some(quote_literal(self.schema())),
            "id_literal" => Some(quote_literal(self.columns().name(Column::Id))),
            "rows" => Some(self.rows(false)),
            "named_rows" => Some(self.named_rows()),
            "whole_event" => Some(self.whole_event("o")),
            name if MODULE_NAMES.contains(&name) => Some(self.sibling(name)),
            name if name.ends_with("_literal") => {
                Some(quote_literal(&self.value_of(name.trim_end_matches("_literal"))?))
            }
            _ => DERIVED
                .iter()
                .find_map(|(known, suffix)| match placeholder.strip_prefix(known)? {
                    "" => Some(self.derived(suffix)),
                    "_literal" => Some(quote_literal(&self.derived(suffix))),
                    _ => None,
                })
                .or_else(|| Some(self.column(Column::named(placeholder.strip_suffix("_column")?)?))),
        }
    }

    fn derived(&self, suffix: &str) -> String {
        self.sibling(&format!("{}{suffix}", self.table()))
    }
}

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

/// The next `{lower_case}` placeholder: the text before it, its name, and the text after it.
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

/// The placeholders in `template` that [`TableName::render`] does not know.
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

    const IDENTIFIER_BYTES_MAX: usize = 63;

    #[test]
    fn names_derived_from_the_longest_table_name_fit() {
        let name = TableName::new("s".repeat(63), "t".repeat(50)).unwrap();
        for (placeholder, suffix) in DERIVED {
            assert!(name.table().len() + suffix.len() <= IDENTIFIER_BYTES_MAX, "{placeholder}");
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
}
