//! Selects sent events, for `verify` and `replay`.

use crate::cycle::statements::topic_of_target_sql;
use crate::table::{TableName, fill};
use relay::topic::TopicRules;
use std::time::SystemTime;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Conditions that must all match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentSelection {
    /// Whether the times are those of `created_at` instead of `sent_at`.
    pub by_created: bool,
    /// From this time on.
    pub since: Option<SystemTime>,
    /// Before this time.
    pub until: Option<SystemTime>,
    pub topic: Option<String>,
    /// The Kafka key, `aggregate_id`.
    pub key: Option<String>,
    pub event_ids: Option<Vec<Uuid>>,
    /// Sent before this time, whatever the range applies to.
    pub sent_before: Option<SystemTime>,
}

/// The number of parameters of the conditions. Parameters of the statement follow them.
pub(crate) const SELECTION_PARAMS: usize = 7;

const IN_RANGE: &str = "(
    ($1::timestamptz IS NULL OR CASE WHEN $6::boolean THEN o.{created_at_column} ELSE o.{sent_at_column} END >= $1)
    AND ($2::timestamptz IS NULL OR CASE WHEN $6 THEN o.{created_at_column} ELSE o.{sent_at_column} END < $2)
    AND ($3::text IS NULL OR {topic} = $3)
    AND ($4::text IS NULL OR o.{aggregate_id_column} = $4)
    AND ($5::uuid[] IS NULL OR o.{event_id_column} = ANY ($5)))";

const FITS: &str = "
    (o.{sent_at_column} IS NOT NULL AND ($7::timestamptz IS NULL OR o.{sent_at_column} < $7) AND {in_range})";

impl SentSelection {
    pub(crate) fn params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        vec![
            (&self.since, Type::TIMESTAMPTZ),
            (&self.until, Type::TIMESTAMPTZ),
            (&self.topic, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.event_ids, Type::UUID_ARRAY),
            (&self.by_created, Type::BOOL),
            (&self.sent_before, Type::TIMESTAMPTZ),
        ]
    }

    /// Replaces all placeholders: also `{in_range}`, the conditions on a row `o` of the table itself, `{fits}`, the same for a sent
    /// row, and `{topic}`, its topic.
    pub(crate) fn render(&self, sql: &str, table: &TableName, topics: &TopicRules) -> String {
        let template = sql.replace("{fits}", FITS).replace("{in_range}", IN_RANGE);
        fill(&template, |placeholder| match placeholder {
            "topic" => Some(topic_of_target_sql(table, topics)),
            _ => table.value_of(placeholder),
        })
    }
}
