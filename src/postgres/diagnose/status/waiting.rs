//! What waits: unsent rows, held topics, blocked keys, dead letters.

use super::seconds;
use crate::postgres::cycle::statements::WaitConditions;
use crate::postgres::table::TableName;
use pg_outbox::topic::TopicTemplate;
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;

/// More dead letters than this are not counted.
pub(crate) const DEAD_LETTERS_COUNTED_MAX: i64 = 100_000;
/// More blocked keys than this are not counted.
pub(crate) const BLOCKED_KEYS_COUNTED_MAX: i64 = 10_000;
/// The backlog is exact up to this, then an estimate.
pub(crate) const BACKLOG_COUNTED_MAX: i64 = 10_000;
/// No more pauses than this are named.
pub(crate) const PAUSES_NAMED_MAX: i64 = 100;
/// So many unsent rows of each lane are looked at closer.
pub(super) const FIRST_ROWS_A_LANE: i64 = 100;

pub(super) const HELD: &str =
    "SELECT topic, reason, error, held_at, probe_at, probes FROM {hold} ORDER BY held_at, topic LIMIT 100";

pub(super) const DEAD_LETTERS: &str = "
SELECT reason, count(*)
FROM (SELECT reason FROM {dead_letter} WHERE requeued_at IS NULL ORDER BY id DESC LIMIT $1::bigint) AS latest
GROUP BY reason
ORDER BY count(*) DESC, reason";

pub(super) const BLOCKED: &str = "
SELECT topic, aggregate_id, outbox_id, reason, blocked_at, (SELECT count(*) FROM (SELECT FROM {blocked_key} LIMIT $1) AS b)
FROM {blocked_key}
ORDER BY outbox_id
LIMIT 5";

/// What the first unsent rows of each lane wait for: an operator, or, if nobody has paused them, their topic, or else their
/// key. Behind so many of them, others may wait that nobody looks at here: that is the price of a bound.
pub(super) fn first(table: &TableName, template: &TopicTemplate) -> String {
    let (outbox, WaitConditions { held, blocked, paused }) =
        (table.quoted(), WaitConditions::new(table, template));
    format!(
        "
SELECT count(*), count(*) FILTER (WHERE held AND NOT paused), count(*) FILTER (WHERE blocked AND NOT held AND NOT paused),
       min(id) FILTER (WHERE NOT held AND NOT blocked AND NOT paused),
       max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM created_at), 0))
           FILTER (WHERE NOT held AND NOT blocked AND NOT paused)::float8,
       count(*) FILTER (WHERE paused)
FROM (
    SELECT p.*
    FROM unnest($1::smallint[]) AS l(lane)
    CROSS JOIN LATERAL (
        SELECT o.id, o.created_at, {held} AS held, {blocked} AS blocked, {paused} AS paused
        FROM {outbox} o
        WHERE (hashtext(o.aggregate_id) & 63) = l.lane AND o.sent_at IS NULL
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT $2::bigint
    ) AS p
) AS first"
    )
}

/// What the first unsent rows of each lane wait for, at most 100 a lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct First {
    /// How many were looked at.
    pub rows: i64,
    /// Of them, those that an operator has paused.
    pub paused: i64,
    /// Of the others, those of held topics.
    pub held: i64,
    /// Of them, those of blocked keys whose topic is not held.
    pub blocked: i64,
    /// The least id of those that wait for nothing but a relay.
    pub id: Option<i64>,
    /// The age of the oldest of those.
    pub age: Option<Duration>,
}

impl From<&Row> for First {
    fn from(row: &Row) -> First {
        First {
            rows: row.get(0),
            paused: row.get(5),
            held: row.get(1),
            blocked: row.get(2),
            id: row.get(3),
            age: seconds(row.get(4)),
        }
    }
}

/// A topic whose rows wait.
#[derive(Clone, Debug)]
pub(crate) struct HeldTopic {
    /// The topic.
    pub topic: String,
    /// A word to filter by.
    pub reason: String,
    /// A sentence for a person.
    pub error: String,
    /// Since when.
    pub since: SystemTime,
    /// When a relay next tries it.
    pub next_probe: SystemTime,
    /// How often it was tried.
    pub probes: i32,
}

impl From<&Row> for HeldTopic {
    fn from(row: &Row) -> HeldTopic {
        HeldTopic {
            topic: row.get(0),
            reason: row.get(1),
            error: row.get(2),
            since: row.get(3),
            next_probe: row.get(4),
            probes: row.get(5),
        }
    }
}

/// A key whose events wait.
#[derive(Clone, Debug)]
pub(crate) struct Blocked {
    /// The topic that the refused event was meant for.
    pub topic: String,
    /// The key.
    pub key: String,
    /// The row that Kafka refused.
    pub outbox_id: i64,
    /// A word to filter by.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
}

impl From<&Row> for Blocked {
    fn from(row: &Row) -> Blocked {
        Blocked {
            topic: row.get(0),
            key: row.get(1),
            outbox_id: row.get(2),
            reason: row.get(3),
            since: row.get(4),
        }
    }
}
