use thiserror::Error;

use crate::error::PostgresError;

/// Why [`Outbox::check`](crate::Outbox::check) failed.
///
/// ```
/// use pg_outbox::CheckError;
///
/// fn alert(error: &CheckError) -> String {
///     match error {
///         CheckError::Differences { table, differences } => format!("{table}: {} differences", differences.len()),
///         other => format!("not checked: {other}"),
///     }
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The outbox of this application differs from the database.
    #[error("the outbox {table} of this application does not match the database:{}", list(.differences))]
    Differences {
        /// The table, as in SQL.
        table: String,
        /// Every difference; at least one.
        differences: Vec<Difference>,
    },
    /// PostgreSQL rejected the check or is unavailable.
    #[error("cannot check the outbox {table}")]
    Postgres {
        /// The table, as in SQL.
        table: String,
        /// The error of PostgreSQL or the connection.
        source: PostgresError,
    },
}

/// A difference between an application's outbox and the database.
///
/// ```
/// use pg_outbox::Difference;
///
/// /// Only a difference in the topics can be temporary, while the template is being changed.
/// fn is_temporary(difference: &Difference) -> bool {
///     matches!(difference, Difference::Topics { .. })
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Difference {
    /// The table does not exist in this database.
    #[error("the table does not exist. {}", other_outboxes(.outboxes))]
    NoTable {
        /// Up to five outboxes of the database, as in SQL.
        outboxes: Option<String>,
    },
    /// The table exists, but `outbox-relay migrate` did not create it, so no relay publishes its rows.
    #[error(
        "the table exists, but `outbox-relay migrate` did not create it, so no relay publishes its rows. {}",
        other_outboxes(.outboxes)
    )]
    NotAnOutbox {
        /// Up to five outboxes of the database, as in SQL.
        outboxes: Option<String>,
    },
    /// A column that this crate sets is missing.
    #[error("the column {column} is missing. Add it with the type {expected}")]
    NoColumn {
        /// The column.
        column: &'static str,
        /// Its type in the schema of the relay.
        expected: &'static str,
    },
    /// A column has a type that neither this crate nor the relay supports.
    #[error("the column {column} has the type {found}. Change it to {expected}")]
    ColumnType {
        /// The column.
        column: &'static str,
        /// Its type.
        found: String,
        /// Its type in the schema of the relay.
        expected: &'static str,
    },
    /// The payload column has a type that this crate does not support. The relay can also publish `text`.
    #[error(
        "the column payload has the type {found}, which pg-outbox does not support. Change it to json, jsonb or bytea"
    )]
    PayloadType {
        /// Its type.
        found: String,
    },
    /// The application and the relay have different topic templates.
    #[error(
        "the topic template is {application}, but the relay's is {relay}. Use the same one in `topic_template` and in \
         the relay's [outbox] topic. If you changed the relay's template, restart the relay"
    )]
    Topics {
        /// The template of the application.
        application: String,
        /// The template that the relay has recorded.
        relay: String,
    },
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(|difference| format!("\n  {difference}")).collect()
}

fn other_outboxes(outboxes: &Option<String>) -> String {
    match outboxes {
        Some(outboxes) => format!("Use the table of the relay; this database has {outboxes}"),
        None => "Create it with `outbox-relay migrate`, or connect to the relay's database".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_lists_every_difference_with_its_fix() {
        let differences = vec![
            Difference::NoColumn { column: "headers", expected: "jsonb" },
            Difference::PayloadType { found: "text".to_owned() },
            Difference::Topics { application: "a".to_owned(), relay: "b".to_owned() },
        ];
        let error = CheckError::Differences { table: "\"app\".\"outbox\"".to_owned(), differences };
        let text = error.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].contains("\"app\".\"outbox\""), "{text}");
        assert!(lines[1].contains("headers") && lines[1].contains("jsonb"), "{text}");
        assert!(lines[2].contains("text") && lines[2].contains("json, jsonb or bytea"), "{text}");
        assert!(lines[3].contains("template is a, but the relay's is b"), "{text}");
    }
}
