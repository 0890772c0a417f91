//! A view in place of a table that another tool reads, so that applications insert into the outbox without a change.

use crate::access::roles::RelayRole;
use crate::table::{TableName, fill, quote_identifier};

const DEBEZIUM: &str = include_str!("debezium.sql");

/// The transaction that replaces a table of Debezium's outbox event router with a view. Its last row is a marker.
pub fn debezium(from: &TableName, outbox: &TableName, role: &RelayRole) -> String {
    fill(DEBEZIUM, |placeholder| match placeholder {
        "from" => Some(from.to_string()),
        "before" => Some(from.display_derived("_before")),
        "before_with_schema" => Some(from.display_sibling(&format!("{}_before", from.table()))),
        "function" => Some(from.display_sibling(&format!("{}_to_outbox", from.table()))),
        "to" => Some(outbox.to_string()),
        "writer" => Some(match role.writer() {
            plain if plain.chars().all(|c| c.is_ascii_lowercase() || c == '_') => plain,
            other => quote_identifier(&other),
        }),
        _ => outbox.value_of(placeholder),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_only_where_sql_needs_it() {
        let outbox: TableName = "app.outbox".parse().unwrap();
        let sql = debezium(&"outboxevent".parse().unwrap(), &outbox, &"relay".parse().unwrap());
        assert!(
            !sql.contains('"') && sql.contains("INSERT INTO app.outbox (event_id, aggregate_type,"),
            "{sql}"
        );
        assert!(sql.contains("FROM public.outboxevent_before WHERE false"), "{sql}");
        let from: TableName = "\"My\".\"Out\"".parse().unwrap();
        let sql = debezium(&from, &outbox, &"my relay".parse().unwrap());
        assert!(sql.contains("ALTER TABLE \"My\".\"Out\" RENAME TO \"Out_before\";"), "{sql}");
        assert!(sql.contains("FUNCTION \"My\".\"Out_to_outbox\"()"), "{sql}");
        assert!(sql.contains("TO \"my relay_writer\";"), "{sql}");
    }
}
