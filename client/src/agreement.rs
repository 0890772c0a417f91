//! Compares an application's outbox with the database: the table, its columns, and the topic template of the relay.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::driver::OutboxClient;
use crate::error::PostgresError;
use crate::statement::{Answer, Argument, Kind, Statement};
use crate::table::TableName;
use crate::topic::TopicTemplate;

/// The topics of the relay, as far as the database knows them.
///
/// ```
/// use pg_outbox::RelayTopics;
///
/// let topics = RelayTopics::Recorded { template: "events.{aggregate_type}".to_owned() };
/// assert_eq!(topics.to_string(), "events.{aggregate_type}");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayTopics {
    /// The relay that started last publishes to the topics of this template.
    Recorded {
        /// The template, such as `events.{aggregate_type}`.
        template: String,
    },
    /// No relay has recorded its template: none has started yet, its role lacks the privilege, or the schema is older.
    /// `outbox-relay doctor` reports a missing privilege.
    NotRecorded,
    /// This role may not call the SQL function that returns the template, such as `outbox_template`. Members of
    /// the group `outbox_relay_writer` may.
    Hidden,
}

/// Why [`Outbox::check`](crate::Outbox::check) failed.
///
/// ```
/// use pg_outbox::CheckError;
///
/// fn is_checked(error: &CheckError) -> bool {
///     matches!(error, CheckError::Differences { .. })
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

/// The columns that this crate sets, with their supported types. The first one is that of the relay's schema.
const COLUMNS: [(&str, &[&str]); 6] = [
    ("event_id", &["uuid"]),
    ("aggregate_type", &["text", "character varying"]),
    ("aggregate_id", &["text", "character varying"]),
    ("event_type", &["text", "character varying"]),
    ("headers", &["jsonb"]),
    (PAYLOAD, &["json", "jsonb", "bytea"]),
];
const PAYLOAD: &str = "payload";

/// The function of the relay's schema that returns the recorded template.
const TEMPLATE: &str = "_template";

/// The system catalogs need no privileges.
const LOOK: &str = "
SELECT o.oid IS NOT NULL,
       l.oid IS NOT NULL,
       f.oid IS NOT NULL,
       coalesce(pg_catalog.has_schema_privilege(s.oid, 'USAGE')
                AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE'), false),
       (SELECT pg_catalog.json_object_agg(a.attname, pg_catalog.format_type(a.atttypid, NULL))::text
        FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped),
       CASE WHEN l.oid IS NULL THEN (
           SELECT pg_catalog.string_agg(other.name, ', ') FROM (
               SELECT pg_catalog.quote_ident(n.nspname) || '.'
                      || pg_catalog.quote_ident(pg_catalog.left(c.relname::text, -13)) AS name
               FROM pg_catalog.pg_class AS c
               JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
               WHERE c.relkind = 'r' AND pg_catalog.right(c.relname::text, 13) = '_hold_version'
               ORDER BY 1
               LIMIT 5
           ) AS other
       ) END
FROM (SELECT $1::text AS schema, $2::text AS name) AS wanted
LEFT JOIN pg_catalog.pg_namespace AS s ON s.nspname = wanted.schema
LEFT JOIN pg_catalog.pg_class AS o
    ON o.relnamespace = s.oid AND o.relname = wanted.name AND o.relkind IN ('r', 'p', 'v', 'm', 'f')
LEFT JOIN pg_catalog.pg_class AS l
    ON l.relnamespace = s.oid AND l.relname = wanted.name || '_lane' AND l.relkind = 'r'
LEFT JOIN pg_catalog.pg_proc AS f
    ON f.pronamespace = s.oid AND f.proname = wanted.name || '_template' AND f.pronargs = 0";
const LOOK_COLUMNS: &[Kind] = &[Kind::Flag, Kind::Flag, Kind::Flag, Kind::Flag, Kind::Text, Kind::Text];

/// Compares the topic template only if the application has set one.
pub async fn check(
    table: &TableName,
    template: Option<&TopicTemplate>,
    mut client: impl OutboxClient,
) -> Result<RelayTopics, CheckError> {
    let failed = |source| CheckError::Postgres { table: table.to_string(), source };
    let look = Statement::new(LOOK, LOOK_COLUMNS);
    let names = [Argument::Text(table.schema()), Argument::Text(table.table())];
    let mut rows = client.call(&look, &names).await.map_err(failed)?;
    let Some(row) = rows.first_mut() else { unreachable!("the statement returns one row") };
    let (exists, is_outbox, has_template, may_read_template) =
        (row.flag(), row.flag(), row.flag(), row.flag());
    let columns = row.text().and_then(|columns| serde_json::from_str(&columns).ok()).unwrap_or_default();
    let mut differences = match (exists, is_outbox) {
        (false, _) => vec![Difference::NoTable { outboxes: row.text() }],
        (true, false) => vec![Difference::NotAnOutbox { outboxes: row.text() }],
        (true, true) => of_columns(&columns),
    };
    let topics = if may_read_template {
        let sql = format!("SELECT {}()", table.with_suffix(TEMPLATE));
        let mut rows = client.call(&Statement::new(sql, &[Kind::Text]), &[]).await.map_err(failed)?;
        match rows.first_mut().and_then(Answer::text) {
            Some(template) => RelayTopics::Recorded { template },
            None => RelayTopics::NotRecorded,
        }
    } else if has_template {
        RelayTopics::Hidden
    } else {
        RelayTopics::NotRecorded
    };
    if let (Some(template), RelayTopics::Recorded { template: relay }) = (template, &topics) {
        let application = template.to_string();
        if application != *relay {
            differences.push(Difference::Topics { application, relay: relay.clone() });
        }
    }
    if differences.is_empty() {
        return Ok(topics);
    }
    Err(CheckError::Differences { table: table.to_string(), differences })
}

/// The differences of the columns, which have these types.
fn of_columns(columns: &BTreeMap<String, String>) -> Vec<Difference> {
    let wrong = |(column, types): (&'static str, &'static [&'static str])| {
        let expected = types.first().copied().unwrap_or_default();
        match columns.get(column) {
            None => Some(Difference::NoColumn { column, expected }),
            Some(found) if types.contains(&found.as_str()) => None,
            Some(found) if column == PAYLOAD => Some(Difference::PayloadType { found: found.clone() }),
            Some(found) => Some(Difference::ColumnType { column, found: found.clone(), expected }),
        }
    };
    COLUMNS.into_iter().filter_map(wrong).collect()
}

impl fmt::Display for RelayTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelayTopics::Recorded { template } => f.write_str(template),
            RelayTopics::NotRecorded => f.write_str("no relay has recorded its topic template"),
            RelayTopics::Hidden => f.write_str("this role may not read the relay's topic template"),
        }
    }
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
