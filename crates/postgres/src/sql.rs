//! The statements. Each is a file below `sql/`, which psql runs too once the variables named in it are set: see
//! `sql/README.md`.
//!
//! A file begins with comments: a paragraph with the purpose, reasons, then `-- $1: meaning` for each parameter. Of psql's syntax
//! it uses variables (`:outbox`, or `:'outbox'` for a literal), `\set`, and lines with `\if :name`, `\else`, `\endif` and `\ir` (of a
//! part, at the beginning of the line). psql does not replace variables in quotes, and neither does [`Script::render`].
//!
//! Variables are every name of [`TableName::value_of`], and the files of `sql/part/`. A migration is a file too, but its text
//! cannot change, and names the same variables in braces: [`TableName::render`].

use crate::table::{TableName, quote_literal};

/// The text of a file in `sql/`, by its path without the extension.
macro_rules! sql {
    ($($path:expr),+) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../sql/", $($path,)+ ".sql"))
    };
}
pub(crate) use sql;

macro_rules! parts {
    ($($name:ident)+) => {
        &[$((stringify!($name), sql!("part/", stringify!($name)))),+]
    };
}

/// The parts that several statements share.
const PARTS: &[(&str, &str)] = parts![
    above_mark are_open changed_headers event is_free key_not_blocked key_not_paused measured not_blocked not_held not_paused
    pending read_lanes versions versions_and_open versions_if_open
];

/// A file with the values of its variables.
#[derive(Clone, Debug)]
pub(crate) struct Script<'a> {
    text: &'static str,
    table: &'a TableName,
    values: Vec<(&'static str, String)>,
}

impl<'a> Script<'a> {
    pub(crate) fn new(text: &'static str, table: &'a TableName) -> Script<'a> {
        Script { text, table, values: Vec::new() }
    }

    /// Sets a variable to SQL text, which is not expanded again.
    #[must_use]
    pub(crate) fn set(mut self, name: &'static str, value: impl Into<String>) -> Script<'a> {
        self.values.push((name, value.into()));
        self
    }

    /// Sets the condition of `\if`.
    #[must_use]
    pub(crate) fn when(self, name: &'static str, is_true: bool) -> Script<'a> {
        self.set(name, is_true.to_string())
    }

    /// The statement, without the comments at its beginning.
    pub(crate) fn render(mut self) -> String {
        let mut text = String::with_capacity(self.text.len());
        // For each enclosing `\if`, whether its present branch applies.
        let mut branches: Vec<bool> = Vec::new();
        let included = |line: &'static str| part(line.strip_prefix(r"\ir ../part/")?.strip_suffix(".sql")?);
        for line in body(self.text).lines().flat_map(|line| included(line).unwrap_or(line).split('\n')) {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some(r"\if"), Some(name)) => branches.push(self.flag(name)),
                (Some(r"\else"), _) => branches.last_mut().into_iter().for_each(|branch| *branch = !*branch),
                (Some(r"\endif"), _) => _ = branches.pop(),
                _ if branches.contains(&false) => {}
                (Some(r"\set"), Some(name)) => {
                    let value = line.split_once(name).map_or("", |(_, value)| value.trim());
                    let value = self.expand(value.trim_matches('\''));
                    self.values.push((name, value));
                }
                _ => text.extend([line, "\n"]),
            }
        }
        self.expand(text.trim_end().trim_end_matches(';'))
    }

    fn flag(&self, name: &str) -> bool {
        let name = name.trim_start_matches(':');
        let value = self.values.iter().find(|(known, _)| *known == name);
        debug_assert!(value.is_some(), "\\if :{name} has no value");
        value.is_some_and(|(_, value)| value == "true")
    }

    /// As in psql, what `\set` sets and what a part contains is expanded in turn.
    fn expand(&self, text: &str) -> String {
        replace(text, &|name| match self.values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => Some(value.clone()),
            None => part(name).map(|part| self.expand(part)).or_else(|| self.table.value_of(name)),
        })
    }
}

fn part(name: &str) -> Option<&'static str> {
    PARTS.iter().find(|(known, _)| *known == name).map(|(_, text)| bare(text))
}

/// `text` with the variables outside of quotes replaced.
fn replace(text: &str, value_of: &dyn Fn(&str) -> Option<String>) -> String {
    let mut sql = String::with_capacity(text.len() * 2);
    let mut quote = None;
    let mut rest = text;
    while let Some(at) = rest.find([':', '\'', '"']) {
        let (before, from) = rest.split_at(at);
        sql.push_str(before);
        let (sign, after) = from.split_at(1);
        rest = after;
        if sign != ":" {
            quote = match quote {
                None => Some(sign),
                Some(open) => Some(open).filter(|open| *open != sign),
            };
            sql.push_str(sign);
        } else if quote.is_none() && after.starts_with(':') {
            sql.push_str("::");
            rest = &after[1..];
        } else if quote.is_none()
            && let Some((value, after)) = variable(after, value_of)
        {
            sql.push_str(&value);
            rest = after;
        } else {
            sql.push(':');
        }
    }
    sql + rest
}

/// The value of the variable whose name or literal begins here, and the text after it.
fn variable<'b>(text: &'b str, value_of: &dyn Fn(&str) -> Option<String>) -> Option<(String, &'b str)> {
    let literal = text.strip_prefix('\'');
    let from = literal.unwrap_or(text);
    let end = from.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(from.len());
    let (name, after) = from.split_at(end);
    let value = value_of(name);
    debug_assert!(name.is_empty() || value.is_some(), ":{name} has no value");
    match literal {
        None => Some((value?, after)),
        Some(_) => Some((quote_literal(&value?), after.strip_prefix('\'')?)),
    }
}

/// The comments at the beginning of a file, without their signs.
fn header(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map_while(|line| line.strip_prefix("--")).map(str::trim)
}

/// The text after the comments at the beginning.
pub(crate) fn body(text: &str) -> &str {
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n')
        && line.starts_with("--")
    {
        rest = after;
    }
    rest
}

/// The statement of a file without variables.
pub(crate) fn bare(text: &str) -> &str {
    body(text).trim_end().trim_end_matches(';')
}

/// The purpose of a statement, in one line.
pub(crate) fn purpose(text: &str) -> String {
    let paragraph = header(text).take_while(|line| !line.is_empty() && !line.starts_with('$'));
    paragraph.collect::<Vec<_>>().join(" ")
}

/// The meaning of each parameter.
pub(crate) fn parameters(text: &str) -> Vec<String> {
    let mut parameters: Vec<String> = Vec::new();
    for line in header(text).skip_while(|line| !line.starts_with('$')) {
        match (line.split_once(": "), parameters.last_mut()) {
            (Some((number, meaning)), _) if number.starts_with('$') => parameters.push(meaning.to_owned()),
            (_, Some(last)) => *last = format!("{last} {line}"),
            _ => {}
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    const FILE: &str = "-- Counts rows\n-- of a lane.\n--\n-- Why.\n--\n-- $1: the lane\n-- $2: a time, which\n--   may be NULL\n\
        \\set word 'o.:id_column'\n\
        SELECT count(*), ':outbox', \":outbox\", :'outbox', $2::text\nFROM :outbox AS o\n\\if :is_new\nWHERE :word > :low\n  \
        \\if :is_other\nAND false\n  \\endif\n\\else\nWHERE true\n\\endif\nORDER BY 1;\n";

    fn script(table: &TableName, is_new: bool) -> String {
        let script = Script::new(FILE, table).set("low", "':low'").when("is_new", is_new);
        script.when("is_other", false).render()
    }

    #[test]
    fn variables_and_branches_are_those_of_psql() {
        let table = TableName::new("app", "it's").unwrap();
        let first = "SELECT count(*), ':outbox', \":outbox\", '\"app\".\"it''s\"', $2::text\nFROM \"app\".\"it's\" AS o\n";
        assert_eq!(script(&table, true), format!("{first}WHERE o.id > ':low'\nORDER BY 1"));
        assert_eq!(script(&table, false), format!("{first}WHERE true\nORDER BY 1"));
    }

    #[test]
    fn comments_describe_the_statement() {
        assert_eq!(purpose(FILE), "Counts rows of a lane.");
        assert_eq!(parameters(FILE), ["the lane", "a time, which may be NULL"]);
    }

    /// Migrations and scripts of `migrate/` and `adopt/` name variables in braces.
    #[test]
    fn every_statement_has_a_purpose_and_psql_gets_its_variables() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sql");
        let variables = fs::read_to_string(folder.join("psql.sql")).unwrap();
        let is_set = |text: &str, name: &str| text.contains(&format!("\\set {name} "));
        let mut statements = 0;
        let mut left: Vec<_> = ["part", "relay", "check", "record", "operate", "status", "doctor"]
            .map(|name| folder.join(name))
            .into();
        while let Some(path) = left.pop() {
            if path.is_dir() {
                left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            assert!(purpose(&text).ends_with('.'), "{} does not begin with its purpose", path.display());
            // The engine knows quotes, but neither comments nor other ways to quote.
            for unknown in ["--", "/*", "$$", " E'", "(E'"] {
                assert!(!body(&text).contains(unknown), "{}: {unknown}", path.display());
            }
            let named = RefCell::new(BTreeSet::new());
            replace(body(&text), &|name| {
                named.borrow_mut().insert(name.to_owned());
                Some(String::new())
            });
            for name in named.into_inner().iter().filter(|name| !name.is_empty()) {
                assert!(is_set(&variables, name) || is_set(&text, name), "{}: :{name}", path.display());
            }
            statements += 1;
        }
        assert!(statements > 100, "{statements}");
    }
}
