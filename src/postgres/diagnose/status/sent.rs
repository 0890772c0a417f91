//! What is known of rows that were sent: how long it took, how many a second, and how far the reaper has come.

use super::seconds;
use std::time::Duration;
use tokio_postgres::Row;

/// No more sent rows are looked at, at either end of the table.
pub(crate) const SENT_ROWS_LOOKED_AT_MAX: i64 = 1_000;

/// The latest sent rows, by the primary key: of the latest rows at all, and of those before $2. `created_at` is when the
/// writer's transaction began, `sent_at` when the settlement was made, after Kafka's acknowledgement.
pub(super) const SENT: &str = "
WITH latest AS (
    (SELECT id, created_at, sent_at FROM {outbox} ORDER BY id DESC LIMIT $1::bigint)
    UNION
    (SELECT id, created_at, sent_at FROM {outbox} WHERE id < $2::bigint ORDER BY id DESC LIMIT $1::bigint)
), sent AS (
    SELECT sent_at, greatest(extract(epoch FROM sent_at) - extract(epoch FROM created_at), 0)::float8 AS took
    FROM latest
    WHERE sent_at IS NOT NULL
    ORDER BY id DESC
    LIMIT $1::bigint
)
SELECT count(*),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY took), percentile_cont(0.95) WITHIN GROUP (ORDER BY took),
       percentile_cont(0.99) WITHIN GROUP (ORDER BY took), max(took),
       (extract(epoch FROM clock_timestamp()) - extract(epoch FROM max(sent_at)))::float8
FROM sent";

/// The first rows of the table, by the primary key, which the reaper walks, too.
pub(super) const REAPED: &str = "
SELECT (extract(epoch FROM clock_timestamp()) - extract(epoch FROM min(sent_at)))::float8
FROM (SELECT sent_at FROM {outbox} ORDER BY id LIMIT $1::bigint) AS first";

/// Cumulative statistics: each server process reports what it did at most once a second, at the end of a transaction.
pub(super) const COUNTERS: &str = "
SELECT n_tup_ins, n_tup_upd, n_tup_del, extract(epoch FROM clock_timestamp())::float8
FROM pg_stat_user_tables
WHERE relid = $1::text::regclass";

/// What the latest sent rows tell.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// How many were looked at, at most [`SENT_ROWS_LOOKED_AT_MAX`].
    pub rows: i64,
    /// How long they took; nothing if there are none.
    pub latency: Option<Latency>,
    /// How long ago the latest of them was sent.
    pub latest_age: Option<Duration>,
}

/// From the begin of the writer's transaction to the settlement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    /// Half of them took no longer.
    pub p50: Duration,
    /// 95 % took no longer.
    pub p95: Duration,
    /// 99 % took no longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl From<&Row> for Sent {
    fn from(row: &Row) -> Sent {
        let at = |column: usize| seconds(row.get(column));
        let latency = match (at(1), at(2), at(3), at(4)) {
            (Some(p50), Some(p95), Some(p99), Some(max)) => Some(Latency { p50, p95, p99, max }),
            _ => None,
        };
        Sent { rows: row.get(0), latency, latest_age: at(5) }
    }
}

/// How far the reaper has come, as the first rows of the table tell.
#[derive(Clone, Debug)]
pub(crate) struct Reaping {
    /// How long ago the oldest of them that is sent was sent; nothing if all of them are unsent.
    pub oldest_sent: Option<Duration>,
}

impl From<&Row> for Reaping {
    fn from(row: &Row) -> Reaping {
        Reaping { oldest_sent: seconds(row.get(0)) }
    }
}

/// What happened to the table's rows since its statistics began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    /// Rows inserted, those of transactions that rolled back included.
    pub inserted: i64,
    /// Rows updated: marked as sent, if nobody else updates them.
    pub updated: i64,
    /// Rows deleted: by the reaper, as dead letters, or as sent, with `on_sent = "delete"`.
    pub deleted: i64,
    /// When they were read, in seconds by the server's clock.
    pub at: f64,
}

impl From<&Row> for Counters {
    fn from(row: &Row) -> Counters {
        Counters { inserted: row.get(0), updated: row.get(1), deleted: row.get(2), at: row.get(3) }
    }
}
