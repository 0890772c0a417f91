//! Sent rows: their latency and rate, and how far the reaper is.

use super::seconds;
use std::time::Duration;
use tokio_postgres::Row;

/// The maximum number of rows that are read at either end of the table.
pub const SENT_ROWS_READ_MAX: i64 = 1_000;

/// The latest sent rows by id, among the latest rows of the table and the latest rows before $2. `created_at` is the start of
/// the writer's transaction, `sent_at` the time of the settlement.
pub(super) const SENT: &str = "
WITH latest AS (
    (SELECT id, created_at, sent_at FROM {named_rows} ORDER BY id DESC LIMIT $1::bigint)
    UNION
    (SELECT id, created_at, sent_at FROM {named_rows} WHERE id < $2::bigint ORDER BY id DESC LIMIT $1::bigint)
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

/// The first rows of the table by id.
pub(super) const REAPED: &str = "
SELECT (extract(epoch FROM clock_timestamp()) - extract(epoch FROM min(sent_at)))::float8
FROM (SELECT sent_at FROM {named_rows} ORDER BY id LIMIT $1::bigint) AS first";

/// Cumulative statistics. A server process updates them at most once per second, at the end of a transaction.
pub(super) const COUNTERS: &str = "
SELECT n_tup_ins, n_tup_upd, n_tup_del, extract(epoch FROM clock_timestamp())::float8
FROM pg_stat_user_tables
WHERE relid = $1::text::regclass";

/// The latest sent rows.
#[derive(Clone, Debug)]
pub struct Sent {
    /// How many there are, at most [`SENT_ROWS_READ_MAX`].
    pub rows: i64,
    /// `None` if there are no rows.
    pub latency: Option<Latency>,
    /// The time since the latest row was sent.
    pub latest_age: Option<Duration>,
}

/// The time from the start of the writer's transaction to the settlement.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub p50: Duration,
    pub p95: Duration,
    pub p99: Duration,
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

/// How far the reaper is, judged by the first rows of the table.
#[derive(Clone, Debug)]
pub struct Reaping {
    /// The time since the oldest sent row was sent; `None` if all of them are unsent.
    pub oldest_sent: Option<Duration>,
}

impl From<&Row> for Reaping {
    fn from(row: &Row) -> Reaping {
        Reaping { oldest_sent: seconds(row.get(0)) }
    }
}

/// Changes of the table's rows since its statistics began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Includes inserts that were rolled back.
    pub inserted: i64,
    /// Marked as sent, unless something else updates rows.
    pub updated: i64,
    /// By the reaper, as dead letters, or with `on_sent = "delete"`.
    pub deleted: i64,
    /// The server's time, in seconds.
    pub at: f64,
}

impl From<&Row> for Counters {
    fn from(row: &Row) -> Counters {
        Counters { inserted: row.get(0), updated: row.get(1), deleted: row.get(2), at: row.get(3) }
    }
}
