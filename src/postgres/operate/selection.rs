//! Which dead letters or blocked keys an operator means.

use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Everything that is given must fit. Nothing given: all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selection {
    /// The topic that the event was meant for.
    pub topic: Option<String>,
    /// The Kafka key, `aggregate_id`.
    pub key: Option<String>,
    /// The word for why it was refused.
    pub reason: Option<String>,
    /// Refused longer ago than this.
    pub older_than: Option<Seconds>,
    /// Refused since.
    pub newer_than: Option<Seconds>,
    /// One of these.
    pub ids: Option<Vec<i64>>,
    /// One of these.
    pub event_ids: Option<Vec<Uuid>>,
}

/// A time in seconds, as the statements take it.
pub(crate) type Seconds = f64;

/// How many parameters the conditions take; the statement's own come after them.
pub(crate) const SELECTION_PARAMS: usize = 7;

impl Selection {
    /// In seconds.
    pub(crate) fn seconds(duration: Duration) -> Seconds {
        duration.as_secs_f64()
    }

    /// Nothing is given.
    pub(crate) fn is_all(&self) -> bool {
        *self == Selection::default()
    }

    /// The values of [`conditions`].
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

/// Part of an act, one transaction: the oldest with an id above `after` and not above `up_to`, at most `rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The last id of the batch before.
    pub after: i64,
    /// The highest id when the act began.
    pub up_to: i64,
    /// The most rows.
    pub rows: i64,
}

impl Batch {
    /// The parameters that follow those of the selection.
    pub(crate) fn params(&self) -> [(&(dyn ToSql + Sync), Type); 3] {
        [(&self.after, Type::INT8), (&self.up_to, Type::INT8), (&self.rows, Type::INT8)]
    }
}

/// In SQL, for a table called `s` whose rows have this id and came about at this time. A condition that is not given
/// is constant for the planner.
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
