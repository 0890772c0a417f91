//! A statement with the description that operators need to run EXPLAIN on it.

use crate::table::TableName;
use std::fmt;
use std::ops::Deref;

/// A statement that depends only on the names of the tables: `{outbox}`, `{lane}` and the rest.
#[derive(Debug)]
pub(crate) struct Template {
    pub(super) name: &'static str,
    pub(super) purpose: &'static str,
    /// What each parameter means. The text casts each parameter, which gives its type.
    pub(super) params: &'static [&'static str],
    pub(crate) sql: &'static str,
}

impl Template {
    pub(super) fn query(&self, table: &TableName) -> Query {
        Query::new(self.name, self.purpose, self.params, table.render(self.sql))
    }
}

/// A complete statement of the relay, without placeholders. It dereferences to its text.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    name: &'static str,
    purpose: &'static str,
    params: &'static [&'static str],
    sql: String,
}

impl Query {
    pub(super) fn new(
        name: &'static str,
        purpose: &'static str,
        params: &'static [&'static str],
        sql: String,
    ) -> Query {
        Query { name, purpose, params, sql }
    }

    /// The name under which `migrate --print-queries` prints it.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The types of the parameters, as SQL writes them.
    fn types(&self) -> Vec<&str> {
        (1..=self.params.len()).map(|number| self.type_of(number)).collect()
    }

    /// The first cast of a parameter.
    fn type_of(&self, number: usize) -> &str {
        let (_, cast) = self.sql.split_once(&format!("${number}::")).unwrap_or(("", "unknown"));
        let end = cast.find(|c: char| !c.is_ascii_alphanumeric() && !"[]".contains(c));
        &cast[..end.unwrap_or(cast.len())]
    }
}

impl Deref for Query {
    type Target = str;

    fn deref(&self) -> &str {
        &self.sql
    }
}

/// Comments with the name, the purpose and the parameters, then the statement as `PREPARE`.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "-- {}: {}", self.name, self.purpose)?;
        let types = self.types();
        for ((number, meaning), sql_type) in (1..).zip(self.params).zip(&types) {
            writeln!(f, "-- ${number} {sql_type}: {meaning}")?;
        }
        writeln!(f, "PREPARE {} ({}) AS\n{};", self.name, types.join(", "), self.sql.trim())
    }
}
