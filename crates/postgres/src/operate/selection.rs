//! Selects dead letters or blocked keys.

use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Conditions that must all match. Without any, everything is selected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    pub topic: Option<String>,
    /// The Kafka key, `aggregate_id`.
    pub key: Option<String>,
    /// The keyword of the rejection.
    pub reason: Option<String>,
    /// Rejected longer ago than this.
    pub older_than: Option<Seconds>,
    /// Rejected less long ago than this.
    pub newer_than: Option<Seconds>,
    pub ids: Option<Vec<i64>>,
    pub event_ids: Option<Vec<Uuid>>,
}

/// A duration in seconds, as a parameter of the statements.
pub(crate) type Seconds = f64;

/// The number of parameters of [`conditions`]. Parameters of the statement follow them.
pub(crate) const SELECTION_PARAMS: usize = 7;

impl Selection {
    pub fn seconds(duration: Duration) -> Seconds {
        duration.as_secs_f64()
    }

    /// Whether everything is selected.
    pub fn is_all(&self) -> bool {
        *self == Selection::default()
    }

    /// The parameters of [`conditions`].
    pub(crate) fn params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        vec![
            (&self.topic, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.reason, Type::TEXT),
            (&self.older_than, Type::FLOAT8),
            (&self.newer_than, Type::FLOAT8),
            (&self.ids, Type::INT8_ARRAY),
            (&self.event_ids, Type::UUID_ARRAY),
        ]
    }
}

/// One transaction of an action: the oldest rows with an id above `after` and up to `up_to`, at most `rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The last id of the previous batch.
    pub after: i64,
    /// The highest id when the action began.
    pub up_to: i64,
    pub rows: i64,
}

impl Batch {
    /// The parameters, which follow those of the selection.
    pub(crate) fn params(&self) -> [(&(dyn ToSql + Sync), Type); 3] {
        [(&self.after, Type::INT8), (&self.up_to, Type::INT8), (&self.rows, Type::INT8)]
    }
}

/// SQL conditions on a table `s`, whose rows have the id column `id` and the time column `at`. Conditions that are not set
/// are constant for the planner.
pub(crate) fn conditions(id: &str, at: &str) -> String {
    format!(
        "($1::text IS NULL OR s.topic = $1)
      AND ($2::text IS NULL OR s.aggregate_id = $2)
      AND ($3::text IS NULL OR s.reason = $3)
      AND ($4::float8 IS NULL OR s.{at} < now() - $4 * interval '1 second')
      AND ($5::float8 IS NULL OR s.{at} >= now() - $5 * interval '1 second')
      AND ($6::bigint[] IS NULL OR s.{id} = ANY ($6))
      AND ($7::uuid[] IS NULL OR s.event_id = ANY ($7))"
    )
}
