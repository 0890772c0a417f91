//! Unsent rows, held topics, blocked keys and dead letters.

use super::seconds;
use crate::cycle::statements::WaitConditions;
use crate::table::TableName;
use relay::topic::TopicRules;
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;

/// The maximum number of dead letters that are counted.
pub const DEAD_LETTERS_COUNTED_MAX: i64 = 100_000;
/// The maximum number of blocked keys that are counted.
pub const BLOCKED_KEYS_COUNTED_MAX: i64 = 10_000;
/// Above this, the backlog is an estimate.
pub const BACKLOG_COUNTED_MAX: i64 = 10_000;
/// The maximum number of pauses that are listed.
pub const PAUSES_LISTED_MAX: i64 = 100;
/// The number of unsent rows per lane that [`FirstUnsent`] and [`LaneStatus`] cover.
pub const FIRST_ROWS_A_LANE: i64 = 100;

pub(super) const HELD: &str = "
SELECT topic, reason, left(error, 2000), held_at, probe_at, probes, (SELECT count(*) FROM {hold})
FROM {hold}
ORDER BY held_at, topic
LIMIT 100";

pub(super) const DEAD_LETTERS: &str = "
SELECT reason, count(*), count(*) FILTER (WHERE rejected_at > now() - interval '10 minutes')
FROM (SELECT reason, rejected_at FROM {dead_letter} WHERE requeued_at IS NULL ORDER BY id DESC LIMIT $1::bigint) AS latest
GROUP BY reason
ORDER BY count(*) DESC, reason";

pub(super) const BLOCKED: &str = "
SELECT topic, left(aggregate_id, 300), outbox_id, reason, blocked_at, (SELECT count(*) FROM (SELECT FROM {blocked_key} LIMIT $1) AS b)
FROM {blocked_key}
ORDER BY outbox_id
LIMIT 5";

/// The lanes with unsent rows: how many there are among the first $2, and the age of the oldest of them.
pub(super) const LANES: &str = "
SELECT l.lane, count(*),
       max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM p.created_at), 0))::float8
FROM unnest($1::smallint[]) AS l(lane)
CROSS JOIN LATERAL (
    SELECT o.created_at
    FROM {rows} o
    WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT $2::bigint
) AS p
GROUP BY l.lane
ORDER BY l.lane";

/// Counts the first unsent rows of each lane by the reason why they wait. If there are several, a pause counts, then a hold,
/// then a block.
pub(super) fn first(table: &TableName, topics: &TopicRules) -> String {
    let (rows, WaitConditions { held, blocked, paused }) =
        (table.rows(topics.column), WaitConditions::new(table, topics));
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
        FROM {rows} o
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT $2::bigint
    ) AS p
) AS first"
    )
}

/// The first unsent rows of each lane, by the reason why they wait.
#[derive(Clone, Debug, Default)]
pub struct FirstUnsent {
    /// How many rows were read.
    pub rows: i64,
    /// Paused rows.
    pub paused: i64,
    /// Rows of held topics that are not paused.
    pub held: i64,
    /// Rows of blocked keys that are neither paused nor held.
    pub blocked: i64,
    /// The lowest id of the rows that a relay can send now.
    pub id: Option<i64>,
    /// The age of the oldest row that a relay can send now.
    pub age: Option<Duration>,
}

impl From<&Row> for FirstUnsent {
    fn from(row: &Row) -> FirstUnsent {
        FirstUnsent {
            rows: row.get(0),
            paused: row.get(5),
            held: row.get(1),
            blocked: row.get(2),
            id: row.get(3),
            age: seconds(row.get(4)),
        }
    }
}

/// A lane with unsent rows.
#[derive(Clone, Copy, Debug)]
pub struct LaneStatus {
    pub lane: i16,
    /// The number of unsent rows, counted up to [`FIRST_ROWS_A_LANE`].
    pub rows: i64,
    /// The age of the oldest of them.
    pub oldest: Option<Duration>,
}

impl From<&Row> for LaneStatus {
    fn from(row: &Row) -> LaneStatus {
        LaneStatus { lane: row.get(0), rows: row.get(1), oldest: seconds(row.get(2)) }
    }
}

/// A held topic.
#[derive(Clone, Debug)]
pub struct HeldTopic {
    pub topic: String,
    /// A keyword to filter by.
    pub reason: String,
    /// The full error message.
    pub error: String,
    pub since: SystemTime,
    pub next_probe: SystemTime,
    /// How many times the topic was probed.
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

/// Dead letters that were rejected for one reason and not requeued.
#[derive(Clone, Debug)]
pub struct RejectedEvents {
    pub reason: String,
    pub rows: i64,
    /// Those of the last 10 minutes.
    pub recent: i64,
}

impl From<&Row> for RejectedEvents {
    fn from(row: &Row) -> RejectedEvents {
        RejectedEvents { reason: row.get(0), rows: row.get(1), recent: row.get(2) }
    }
}

/// A blocked key.
#[derive(Clone, Debug)]
pub struct KeyBlock {
    pub topic: String,
    pub key: String,
    /// The rejected row.
    pub outbox_id: i64,
    /// A keyword to filter by.
    pub reason: String,
    pub since: SystemTime,
}

impl From<&Row> for KeyBlock {
    fn from(row: &Row) -> KeyBlock {
        KeyBlock {
            topic: row.get(0),
            key: row.get(1),
            outbox_id: row.get(2),
            reason: row.get(3),
            since: row.get(4),
        }
    }
}
