//! The statements. Each is a file below `sql/`, which psql runs too once the variables named in it are set.
//!
//! A file begins with comments: the purpose, then `-- $1: meaning` for each parameter. Of psql's syntax it uses variables
//! (`:outbox`, or `:'outbox'` for a literal) and lines with `\if :name`, `\else` and `\endif`. psql does not replace
//! variables in quotes, and neither does [`Script::render`].
//!
//! Every name of [`TableName::value_of`] is a variable. A migration is a file too, but its text cannot change, and names the
//! same variables in braces: [`TableName::render`].

use crate::table::{TableName, quote_literal};

/// The text of a file in `sql/`, by its path without the extension.
macro_rules! sql {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../sql/", $path, ".sql"))
    };
}
pub(crate) use sql;

/// A file with the values of its variables.
#[derive(Clone, Debug)]
pub(crate) struct Script<'a> {
    text: &'static str,
    table: &'a TableName,
    values: Vec<(&'static str, String)>,
    flags: Vec<(&'static str, bool)>,
}

impl<'a> Script<'a> {
    /// A file, for this outbox.
    pub(crate) fn new(text: &'static str, table: &'a TableName) -> Script<'a> {
        Script { text, table, values: Vec::new(), flags: Vec::new() }
    }

    /// Sets a variable to SQL text, which is not expanded again.
    #[must_use]
    pub(crate) fn set(mut self, name: &'static str, value: impl Into<String>) -> Script<'a> {
        self.values.push((name, value.into()));
        self
    }

    /// Sets the condition of `\if`.
    #[must_use]
    pub(crate) fn when(mut self, name: &'static str, is_true: bool) -> Script<'a> {
        self.flags.push((name, is_true));
        self
    }

    /// The statement, without the comments at its beginning.
    pub(crate) fn render(&self) -> String {
        let mut sql = String::with_capacity(self.text.len() * 2);
        // For each enclosing `\if`, whether its present branch applies.
        let mut branches: Vec<bool> = Vec::new();
        for line in body(self.text).lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next().and_then(|word| word.strip_prefix(':'))) {
                (Some(r"\if"), Some(name)) => branches.push(self.flag(name)),
                (Some(r"\else"), _) => branches.last_mut().into_iter().for_each(|branch| *branch = !*branch),
                (Some(r"\endif"), _) => _ = branches.pop(),
                _ if branches.iter().all(|applies| *applies) => {
                    if !sql.is_empty() {
                        sql.push('\n');
                    }
                    sql.push_str(line);
                }
                _ => {}
            }
        }
        self.fill(sql.trim_end().trim_end_matches(';'))
    }

    fn flag(&self, name: &str) -> bool {
        let flag = self.flags.iter().find(|(known, _)| *known == name);
        debug_assert!(flag.is_some(), "\\if :{name} has no value");
        flag.is_some_and(|(_, is_true)| *is_true)
    }

    fn value(&self, name: &str) -> Option<String> {
        let own = self.values.iter().find(|(known, _)| *known == name);
        own.map(|(_, value)| value.clone()).or_else(|| self.table.value_of(name))
    }

    /// Replaces variables outside of quotes.
    fn fill(&self, text: &str) -> String {
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
            } else if let (None, Some((value, after))) = (quote, self.variable(after)) {
                sql.push_str(&value);
                rest = after;
            } else {
                sql.push(':');
            }
        }
        sql + rest
    }

    /// The value of the variable whose name or literal begins here, and the text after it.
    fn variable<'b>(&self, text: &'b str) -> Option<(String, &'b str)> {
        let literal = text.strip_prefix('\'');
        let from = literal.unwrap_or(text);
        let end = from.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(from.len());
        let (name, after) = from.split_at(end);
        let value = self.value(name);
        debug_assert!(name.is_empty() || value.is_some(), ":{name} has no value");
        match literal {
            None => Some((value?, after)),
            Some(_) => Some((quote_literal(&value?), after.strip_prefix('\'')?)),
        }
    }
}

/// The comments at the beginning of a file, without their signs.
fn header(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map_while(|line| line.strip_prefix("--")).map(str::trim)
}

fn body(text: &str) -> &str {
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n')
        && line.starts_with("--")
    {
        rest = after;
    }
    rest
}

/// The purpose of a statement, in one line.
pub(crate) fn purpose(text: &str) -> String {
    header(text).take_while(|line| !line.starts_with('$')).collect::<Vec<_>>().join(" ")
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

    const FILE: &str = "-- Counts rows\n-- of a lane.\n-- $1: the lane\n-- $2: a time, which\n--   may be NULL\n\
        SELECT count(*), ':outbox', \":outbox\", :'outbox', $2::text\nFROM :outbox AS o\n\\if :is_new\nWHERE o.:id_column > :low\n  \
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
}
