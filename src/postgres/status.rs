//! What the database alone tells about an outbox and its relays. Every statement is bounded, whatever the table holds.

use super::connect::Database;
use super::statements::{BACKLOG, OLDEST};
use super::pauses::{self, PausedScope};
use super::table::TableName;
use super::transaction::{Params, ShortTransaction};
use crate::relay::failure::Fault;
use crate::relay::lane::{LANES, Lane};
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// More dead letters than this are not counted.
pub const DEAD_LETTERS_COUNTED_MAX: i64 = 100_000;
/// More blocked keys than this are not counted.
pub const BLOCKED_KEYS_COUNTED_MAX: i64 = 10_000;
/// The backlog is exact up to this, then an estimate.
pub const BACKLOG_COUNTED_MAX: i64 = 10_000;
const WAITING_TYPES_MAX: usize = 200;

const HELD: &str =
    "SELECT topic, reason, error, held_at, probe_at, probes FROM {hold} ORDER BY held_at, topic LIMIT 100";

const DEAD_LETTERS: &str = "
SELECT reason, count(*)
FROM (SELECT reason FROM {dead_letter} WHERE requeued_at IS NULL ORDER BY id DESC LIMIT $1::bigint) AS latest
GROUP BY reason
ORDER BY count(*) DESC, reason";

const BLOCKED: &str = "
SELECT topic, aggregate_id, outbox_id, reason, blocked_at, (SELECT count(*) FROM (SELECT FROM {blocked_key} LIMIT $1) AS b)
FROM {blocked_key}
ORDER BY outbox_id
LIMIT 5";

/// No more pauses than this are named.
pub const PAUSES_NAMED_MAX: i64 = 100;

/// Under the name of this very connection. A pooler in between shows its own address.
const RELAYS: &str = "
SELECT current_setting('server_version'), current_setting('application_name'), count(a.pid),
       count(DISTINCT coalesce(host(a.client_addr), 'socket')) FILTER (WHERE a.pid IS NOT NULL)
FROM (SELECT 1) AS one
LEFT JOIN pg_stat_activity AS a
    ON a.application_name = current_setting('application_name') AND a.datname = current_database()
       AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'";

/// Whatever keeps dead rows from being removed: a transaction, a prepared one, a replication slot. A role without
/// pg_read_all_stats sees of others that they do, not since when.
const HOLDS_VACUUM: &str = "
SELECT what, name, transactions, seconds
FROM (
    SELECT 'transaction' AS what,
           concat_ws(' ', 'pid', pid, nullif(application_name, ''), state) AS name,
           greatest(age(backend_xmin), age(backend_xid)) AS transactions,
           extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
      AND (datname = current_database() OR datname IS NULL)
    UNION ALL
    SELECT 'prepared transaction', gid, age(transaction),
           extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name::text, age(xmin), NULL
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
) AS held
ORDER BY transactions DESC
LIMIT 1";

const SIZE: &str = "
SELECT pg_table_size(c.oid), pg_indexes_size(c.oid), greatest(c.reltuples, 0)::bigint,
       coalesce(s.n_dead_tup, 0), greatest(s.last_autovacuum, s.last_vacuum)
FROM pg_class AS c
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.oid = $1::text::regclass";

/// The aggregate types of the first unsent rows of each lane.
const WAITING_TYPES: &str = "
SELECT DISTINCT p.aggregate_type
FROM unnest($1::smallint[]) AS l(lane)
CROSS JOIN LATERAL (
    SELECT o.aggregate_type
    FROM {outbox} o
    WHERE (hashtext(o.aggregate_id) & 63) = l.lane AND o.sent_at IS NULL
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1000
) AS p
LIMIT $2::bigint";

/// How an outbox stands.
#[derive(Clone, Debug)]
pub struct OutboxStatus {
    /// The version of the server.
    pub server_version: String,
    /// The name under which relays show in `pg_stat_activity`.
    pub application_name: String,
    /// Their connections.
    pub relay_connections: i64,
    /// The addresses that they come from.
    pub relay_addresses: i64,
    /// Unsent rows; above [`BACKLOG_COUNTED_MAX`] an estimate.
    pub backlog_rows: i64,
    /// The age of the oldest of them.
    pub oldest: Option<Duration>,
    /// Topics whose rows wait, the longest held first; at most 100.
    pub held: Vec<HeldTopic>,
    /// Dead letters that were not requeued, by reason; of the latest [`DEAD_LETTERS_COUNTED_MAX`].
    pub dead_letters: Vec<(String, i64)>,
    /// Keys whose events wait behind a refused one; no more than [`BLOCKED_KEYS_COUNTED_MAX`] are counted.
    pub blocked_keys: i64,
    /// The oldest of them, at most 5.
    pub blocked: Vec<Blocked>,
    /// What operators have paused, the oldest first; at most [`PAUSES_NAMED_MAX`].
    pub paused: Vec<PausedScope>,
    /// What holds vacuum back most, if anything does.
    pub vacuum: Option<HoldsVacuum>,
    /// Table and indexes.
    pub size: Size,
}

/// A topic whose rows wait.
#[derive(Clone, Debug)]
pub struct HeldTopic {
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

/// A key whose events wait.
#[derive(Clone, Debug)]
pub struct Blocked {
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

/// What keeps vacuum from removing dead rows.
#[derive(Clone, Debug)]
pub struct HoldsVacuum {
    /// A transaction, a prepared transaction or a replication slot.
    pub what: String,
    /// Which.
    pub name: String,
    /// How many transactions were begun since.
    pub transactions: i32,
    /// Since when, if that may be seen.
    pub age: Option<Duration>,
}

/// The size of the outbox table.
#[derive(Clone, Debug)]
pub struct Size {
    /// The table, in bytes.
    pub table_bytes: i64,
    /// Its indexes, in bytes.
    pub index_bytes: i64,
    /// Rows, as last estimated by vacuum or analyse.
    pub rows: i64,
    /// Dead rows, as last estimated.
    pub dead_rows: i64,
    /// When it was last vacuumed.
    pub vacuumed_at: Option<SystemTime>,
}

/// Asks about one outbox.
pub struct PostgresStatus {
    transaction: ShortTransaction,
    table: TableName,
}

impl PostgresStatus {
    /// About this outbox. Connects when it is first needed.
    pub fn new(database: Database, table: TableName) -> PostgresStatus {
        PostgresStatus { transaction: ShortTransaction::reading(database), table }
    }

    /// Everything.
    pub async fn read(&self) -> Result<OutboxStatus, Fault> {
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let lows = vec![i64::MIN; LANES];
        let backlog = self.one(BACKLOG, &[(&lanes, Type::INT2_ARRAY), (&lows, Type::INT8_ARRAY)]).await?;
        let oldest = self.one(OLDEST, &[(&lanes, Type::INT2_ARRAY)]).await?;
        let held = self.all(HELD, &[]).await?;
        let dead = self.all(DEAD_LETTERS, &[(&DEAD_LETTERS_COUNTED_MAX, Type::INT8)]).await?;
        let blocked = self.all(BLOCKED, &[(&BLOCKED_KEYS_COUNTED_MAX, Type::INT8)]).await?;
        let paused = self.all(pauses::LIST, &[(&PAUSES_NAMED_MAX, Type::INT8)]).await?;
        let relays = self.one(RELAYS, &[]).await?;
        let vacuum = self.all(HOLDS_VACUUM, &[]).await?;
        let size = self.one(SIZE, &[(&self.table.quoted(), Type::TEXT)]).await?;
        Ok(OutboxStatus {
            server_version: relays.get(0),
            application_name: relays.get(1),
            relay_connections: relays.get(2),
            relay_addresses: relays.get(3),
            backlog_rows: backlog.get(0),
            oldest: seconds(oldest.get(0)),
            held: held.iter().map(held_topic).collect(),
            dead_letters: dead.iter().map(|row| (row.get(0), row.get(1))).collect(),
            blocked_keys: blocked.first().map_or(0, |row| row.get(5)),
            blocked: blocked.iter().map(blocked_key).collect(),
            paused: paused.iter().map(pauses::paused).collect(),
            vacuum: vacuum.first().map(|row| HoldsVacuum {
                what: row.get(0),
                name: row.get(1),
                transactions: row.get(2),
                age: seconds(row.get(3)),
            }),
            size: Size {
                table_bytes: size.get(0),
                index_bytes: size.get(1),
                rows: size.get(2),
                dead_rows: size.get(3),
                vacuumed_at: size.get(4),
            },
        })
    }

    /// The aggregate types of the events that wait first: up to 1,000 rows of each lane are looked at.
    pub async fn waiting_types(&self) -> Result<Vec<String>, Fault> {
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let most = WAITING_TYPES_MAX as i64;
        let rows = self.all(WAITING_TYPES, &[(&lanes, Type::INT2_ARRAY), (&most, Type::INT8)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn all(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        self.transaction.query("reading the status", &self.table.render(sql), params).await
    }

    async fn one(&self, sql: &str, params: Params<'_>) -> Result<Row, Fault> {
        let Some(row) = self.all(sql, params).await?.into_iter().next() else {
            unreachable!("each of these statements gives one row")
        };
        Ok(row)
    }
}

fn held_topic(row: &Row) -> HeldTopic {
    HeldTopic {
        topic: row.get(0),
        reason: row.get(1),
        error: row.get(2),
        since: row.get(3),
        next_probe: row.get(4),
        probes: row.get(5),
    }
}

fn blocked_key(row: &Row) -> Blocked {
    Blocked {
        topic: row.get(0),
        key: row.get(1),
        outbox_id: row.get(2),
        reason: row.get(3),
        since: row.get(4),
    }
}

/// Infinite ages, which a writer can make, are none.
fn seconds(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}
