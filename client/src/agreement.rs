//! Compares an application's outbox with the database: the table, its columns, and the topic template of the relay.

mod difference;

use std::fmt;

use crate::call::{Answer, Argument, Call, Kind};
use crate::driver::OutboxClient;
use crate::table::TableName;
use crate::topic::TopicTemplate;

pub use difference::{CheckError, Difference};

/// The topics of the relay, as far as the database knows them.
///
/// ```
/// use pg_outbox::RelayTopics;
///
/// fn is_same(topics: &RelayTopics, expected: &str) -> bool {
///     matches!(topics, RelayTopics::Recorded { template } if template == expected)
/// }
///
/// assert!(is_same(&RelayTopics::Recorded { template: "events.{aggregate_type}".into() }, "events.{aggregate_type}"));
/// assert!(!is_same(&RelayTopics::NotRecorded, "events.{aggregate_type}"));
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
    /// This role may not call the SQL function that returns the template, such as `outbox_template`. By default, every role may.
    Hidden,
}

/// The columns that this crate sets, with their supported types. The first one is that of the relay's schema.
const COLUMNS: [(&str, &[&str]); 5] = [
    ("event_id", &["uuid"]),
    ("aggregate_type", &["text", "character varying"]),
    ("aggregate_id", &["text", "character varying"]),
    ("event_type", &["text", "character varying"]),
    ("headers", &["jsonb"]),
];
const PAYLOAD: &str = "payload";
const PAYLOAD_TYPES: [&str; 3] = ["json", "jsonb", "bytea"];

/// The function of the relay's schema that returns the recorded template.
const TEMPLATE: &str = "_template";

/// One row per column of the table, or one row without a column. The system catalogs need no privileges.
const LOOK: &str = "
SELECT o.oid IS NOT NULL,
       l.oid IS NOT NULL,
       f.oid IS NOT NULL,
       coalesce(pg_catalog.has_schema_privilege(s.oid, 'USAGE')
                AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE'), false),
       a.attname::text,
       pg_catalog.format_type(a.atttypid, NULL),
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
    ON f.pronamespace = s.oid AND f.proname = wanted.name || '_template' AND f.pronargs = 0
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped";
const LOOK_COLUMNS: &[Kind] =
    &[Kind::Flag, Kind::Flag, Kind::Flag, Kind::Flag, Kind::Text, Kind::Text, Kind::Text];

/// Compares the topic template only if the application has set one.
pub async fn check(
    table: &TableName,
    template: Option<&TopicTemplate>,
    mut client: impl OutboxClient,
) -> Result<RelayTopics, CheckError> {
    let failed = |source| CheckError::Postgres { table: table.to_string(), source };
    let look = Call::new(LOOK.to_owned(), LOOK_COLUMNS);
    let names = [Argument::Text(table.schema()), Argument::Text(table.table())];
    let seen = Seen::read(client.call(&look, &names).await.map_err(failed)?);
    let mut differences = seen.differences();
    let topics = if seen.may_read_template {
        let sql = format!("SELECT {}()", table.with_suffix(TEMPLATE));
        let answers = client.call(&Call::new(sql, &[Kind::Text]), &[]).await.map_err(failed)?;
        match answers.into_iter().next().and_then(|mut answer| answer.text()) {
            Some(template) => RelayTopics::Recorded { template },
            None => RelayTopics::NotRecorded,
        }
    } else if seen.has_template {
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

/// What the system catalogs contain.
#[derive(Default)]
struct Seen {
    exists: bool,
    is_outbox: bool,
    has_template: bool,
    may_read_template: bool,
    columns: Vec<(String, String)>,
    outboxes: Option<String>,
}

impl Seen {
    fn read(answers: Vec<Answer>) -> Seen {
        let mut seen = Seen::default();
        for mut answer in answers {
            seen.exists = answer.flag();
            seen.is_outbox = answer.flag();
            seen.has_template = answer.flag();
            seen.may_read_template = answer.flag();
            if let (Some(name), Some(of_type)) = (answer.text(), answer.text()) {
                seen.columns.push((name, of_type));
            }
            seen.outboxes = answer.text();
        }
        seen
    }

    fn differences(&self) -> Vec<Difference> {
        let outboxes = self.outboxes.clone();
        if !self.exists {
            return vec![Difference::NoTable { outboxes }];
        }
        if !self.is_outbox {
            return vec![Difference::NotAnOutbox { outboxes }];
        }
        let wrong = |(column, types): (&'static str, &'static [&'static str])| {
            let expected = types.first().copied().unwrap_or_default();
            match self.type_of(column) {
                None => Some(Difference::NoColumn { column, expected }),
                Some(found) if types.contains(&found) => None,
                Some(found) => Some(Difference::ColumnType { column, found: found.to_owned(), expected }),
            }
        };
        let mut differences: Vec<Difference> = COLUMNS.into_iter().filter_map(wrong).collect();
        differences.extend(match self.type_of(PAYLOAD) {
            None => Some(Difference::NoColumn { column: PAYLOAD, expected: "json" }),
            Some(found) if PAYLOAD_TYPES.contains(&found) => None,
            Some(found) => Some(Difference::PayloadType { found: found.to_owned() }),
        });
        differences
    }

    fn type_of(&self, column: &str) -> Option<&str> {
        self.columns.iter().find(|(name, _)| name == column).map(|(_, of_type)| of_type.as_str())
    }
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
