//! Versions, and the size of the table.

use std::time::SystemTime;
use tokio_postgres::Row;

pub(super) const VERSIONS: &str = "
SELECT current_setting('server_version'),
       (SELECT number::text || ' ' || name FROM {migration} ORDER BY number DESC LIMIT 1)";

pub(super) const SIZE: &str = "
SELECT pg_table_size(c.oid), pg_indexes_size(c.oid), greatest(c.reltuples, 0)::bigint,
       coalesce(s.n_dead_tup, 0), greatest(s.last_autovacuum, s.last_vacuum)
FROM pg_class AS c
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.oid = $1::text::regclass";

/// The versions of the server and the schema.
#[derive(Clone, Debug)]
pub struct Versions {
    /// As the server reports it, such as `18.1`.
    pub server: String,
    /// The latest migration, its number and name.
    pub migration: Option<String>,
}

impl From<&Row> for Versions {
    fn from(row: &Row) -> Versions {
        Versions { server: row.get(0), migration: row.get(1) }
    }
}

/// The size of the outbox table.
#[derive(Clone, Debug)]
pub struct Size {
    pub table_bytes: i64,
    pub index_bytes: i64,
    /// The latest estimate of vacuum or analyze.
    pub rows: i64,
    /// The latest estimate.
    pub dead_rows: i64,
    pub vacuumed_at: Option<SystemTime>,
}

impl From<&Row> for Size {
    fn from(row: &Row) -> Size {
        Size {
            table_bytes: row.get(0),
            index_bytes: row.get(1),
            rows: row.get(2),
            dead_rows: row.get(3),
            vacuumed_at: row.get(4),
        }
    }
}
