//! The state of an outbox and its relays, from the database alone. Every statement reads a bounded number of rows.

use crate::connection::exec::{Params, ShortTransaction};
use crate::connection::pool::Database;
use crate::cycle::statements::script;
use crate::operate::pauses::{self, PausedScope};
use crate::options::OnSent;
use crate::sql::sql;
use crate::table::TableName;
use relay::failure::PostgresFault;
use relay::lanes::{LANES, Lane};
use relay::reason::{blocked_key_remedy, remedy as remedy_for};
use relay::topic::TopicRules;
use serde::{Serialize, Serializer};
use settings::text::time;
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;

const DEAD_LETTERS_COUNTED_MAX: i64 = 100_000;
const BLOCKED_KEYS_COUNTED_MAX: i64 = 10_000;
/// Above this, the backlog is an estimate.
const BACKLOG_COUNTED_MAX: i64 = 10_000;
const PAUSES_LISTED_MAX: i64 = 100;
/// The number of unsent rows per lane that [`FirstUnsent`] and [`LaneStatus`] cover.
pub const FIRST_ROWS_A_LANE: i64 = 100;

/// The maximum number of rows that are read at either end of the table.
const SENT_ROWS_READ_MAX: i64 = 1_000;

/// The state of an outbox. What is serialized is part of `status --json`: durations in seconds, times in RFC 3339.
#[derive(Clone, Debug)]
pub struct OutboxStatus {
    /// As the server reports it, such as `18.1`.
    pub server_version: String,
    /// The latest migration, its number and name.
    pub migration: Option<String>,
    pub backlog: Backlog,
    /// The longest held first, at most 100.
    pub held_topics: Vec<HeldTopic>,
    pub held_topics_total: i64,
    pub blocked_keys: BlockedKeys,
    /// The pause of everything and then the oldest pauses, at most [`PAUSES_LISTED_MAX`].
    pub paused: Vec<PausedScope>,
    pub paused_total: i64,
    pub dead_letters: DeadLetters,
    /// At most 200.
    pub relays: Vec<RelayConnection>,
    /// `None` with `on_sent = "delete"`.
    pub sent: Option<Sent>,
    /// The time since the oldest sent row was sent, judged by the first rows of the table; `None` if all of them are unsent.
    pub oldest_sent: Option<Duration>,
    /// The oldest holder, if there is one.
    pub vacuum: Option<VacuumHolder>,
    pub size: Size,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Backlog {
    pub rows: i64,
    /// Whether there are more than [`BACKLOG_COUNTED_MAX`], so that `rows` is estimated from the ids.
    pub estimated: bool,
    /// The age of the oldest unsent row, whether or not it can be sent now.
    #[serde(rename = "oldest_age_seconds", serialize_with = "as_seconds")]
    pub oldest_age: Option<Duration>,
    pub first: FirstUnsent,
}

/// The first unsent rows of each lane, by the reason why they wait.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FirstUnsent {
    pub rows: i64,
    pub paused: i64,
    /// Rows of held topics that are not paused.
    pub of_held_topics: i64,
    /// Rows of blocked keys that are neither paused nor held.
    pub of_blocked_keys: i64,
    /// Rows that a relay can send now.
    pub free: i64,
    /// The age of the oldest row that a relay can send now.
    #[serde(rename = "oldest_free_age_seconds", serialize_with = "as_seconds")]
    pub age: Option<Duration>,
    /// The lowest id of the rows that a relay can send now.
    #[serde(skip)]
    pub id: Option<i64>,
}

from_row!(FirstUnsent: rows, paused, of_held_topics, of_blocked_keys, free, age as seconds, id);

/// A lane with unsent rows.
#[derive(Clone, Copy, Debug)]
pub struct LaneStatus {
    pub lane: i16,
    /// The number of unsent rows, counted up to [`FIRST_ROWS_A_LANE`].
    pub rows: i64,
    /// The age of the oldest of them.
    pub oldest: Option<Duration>,
}

from_row!(LaneStatus: lane, rows, oldest as seconds);

#[derive(Clone, Debug, Serialize)]
pub struct HeldTopic {
    pub topic: String,
    pub reason: String,
    pub error: String,
    pub remedy: &'static str,
    #[serde(serialize_with = "as_time")]
    pub since: SystemTime,
    #[serde(serialize_with = "as_time")]
    pub next_probe: SystemTime,
    pub probes: i32,
}

from_row!(HeldTopic: topic, reason, error, remedy as remedy_for, since, next_probe, probes);

/// The dead letters that were not requeued, among the latest [`DEAD_LETTERS_COUNTED_MAX`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeadLetters {
    pub rows: i64,
    /// Whether there are more, because only the latest were counted.
    pub at_least: bool,
    /// Those of the last 10 minutes.
    pub recent: i64,
    pub by_reason: Vec<RejectedEvents>,
}

impl DeadLetters {
    pub fn new(mut by_reason: Vec<RejectedEvents>) -> DeadLetters {
        let rows = by_reason.iter().map(|dead| dead.rows).sum();
        let recent = by_reason.iter().map(|dead| dead.recent).sum();
        let at_least = by_reason.iter().any(|dead| dead.read >= DEAD_LETTERS_COUNTED_MAX);
        by_reason.retain(|dead| !dead.reason.is_empty());
        DeadLetters { rows, at_least, recent, by_reason }
    }
}

/// Dead letters that were rejected for one reason and not requeued.
#[derive(Clone, Debug, Serialize)]
pub struct RejectedEvents {
    pub reason: String,
    pub rows: i64,
    /// Those of the last 10 minutes.
    pub recent: i64,
    /// How many dead letters were read, of all reasons.
    #[serde(skip)]
    pub read: i64,
}

from_row!(RejectedEvents: reason, rows, recent, read);

#[derive(Clone, Debug, Default, Serialize)]
pub struct BlockedKeys {
    pub keys: i64,
    /// Whether there are more, because counting stops at [`BLOCKED_KEYS_COUNTED_MAX`].
    pub at_least: bool,
    /// At most 5.
    pub oldest: Vec<KeyBlock>,
}

#[derive(Clone, Debug, Serialize)]
pub struct KeyBlock {
    pub topic: String,
    pub key: String,
    /// The rejected row.
    pub outbox_id: i64,
    pub reason: String,
    pub remedy: &'static str,
    #[serde(serialize_with = "as_time")]
    pub since: SystemTime,
}

from_row!(KeyBlock: topic, key, outbox_id, reason, remedy as blocked_key_remedy, since);

/// What a relay's connection is doing, in the order in which it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    /// It belongs to another role, and this role cannot see what it does.
    Hidden,
    /// It has locked lanes: it reads, waits for Kafka, or settles.
    Publishing,
    /// It waits for another session's lock.
    WaitingForALock,
    /// It runs a statement of the scout, the reaper or a probe.
    Working,
    Idle,
}

/// A relay's connection, or the pooler's if there is one.
#[derive(Clone, Debug, Serialize)]
pub struct RelayConnection {
    pub pid: i32,
    #[serde(rename = "application_name")]
    pub application: String,
    /// `None` for a Unix socket, or if it is hidden.
    pub address: Option<String>,
    pub doing: Doing,
    #[serde(rename = "doing_for_seconds", serialize_with = "as_seconds")]
    pub doing_for: Option<Duration>,
}

impl From<&Row> for RelayConnection {
    fn from(row: &Row) -> RelayConnection {
        let (state, wait, claims): (Option<&str>, Option<&str>, bool) = (row.get(3), row.get(4), row.get(5));
        let doing = doing(state, wait, claims);
        // A claim is as old as its transaction.
        let since = if doing == Doing::Publishing { row.get(7) } else { row.get(6) };
        RelayConnection {
            pid: row.get(0),
            application: row.get(1),
            address: row.get(2),
            doing,
            doing_for: seconds(since),
        }
    }
}

fn doing(state: Option<&str>, wait: Option<&str>, claims: bool) -> Doing {
    match state {
        _ if wait == Some("Lock") => Doing::WaitingForALock,
        _ if claims => Doing::Publishing,
        None => Doing::Hidden,
        Some("idle") => Doing::Idle,
        Some(_) => Doing::Working,
    }
}

/// The latest sent rows, and the time from the start of the writer's transaction to the settlement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sent {
    /// How many there are, at most [`SENT_ROWS_READ_MAX`].
    pub rows: i64,
    #[serde(rename = "p50_seconds", serialize_with = "as_seconds")]
    pub p50: Option<Duration>,
    #[serde(rename = "p95_seconds", serialize_with = "as_seconds")]
    pub p95: Option<Duration>,
    #[serde(rename = "p99_seconds", serialize_with = "as_seconds")]
    pub p99: Option<Duration>,
    #[serde(rename = "max_seconds", serialize_with = "as_seconds")]
    pub max: Option<Duration>,
    /// The time since the latest row was sent.
    #[serde(rename = "latest_sent_age_seconds", serialize_with = "as_seconds")]
    pub latest_age: Option<Duration>,
}

impl From<&Row> for Sent {
    fn from(row: &Row) -> Sent {
        let latencies = [1, 2, 3, 4].map(|column: usize| seconds(row.get(column)));
        // A clock that was set back makes some of them unknown, and the others misleading.
        let [p50, p95, p99, max] = if latencies.contains(&None) { [None; 4] } else { latencies };
        Sent { rows: row.get(0), p50, p95, p99, max, latest_age: seconds(row.get(5)) }
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

from_row!(Counters: inserted, updated, deleted, at);

/// A transaction, standby or slot that keeps vacuum from removing dead rows.
#[derive(Clone, Debug, Serialize)]
pub struct VacuumHolder {
    /// `transaction`, `standby`, `prepared transaction` or `replication slot`.
    pub what: String,
    /// For a transaction or standby, its process, application, role and state. For a transaction, also whether it has written to
    /// the outbox.
    pub name: String,
    /// The server process, if there is one.
    pub pid: Option<i32>,
    #[serde(rename = "application_name")]
    pub application: Option<String>,
    /// How many transactions have begun since.
    pub transactions: i32,
    /// `None` if the role cannot see it.
    #[serde(rename = "age_seconds", serialize_with = "as_seconds")]
    pub age: Option<Duration>,
    /// False for a slot that is not in use.
    #[serde(skip)]
    pub active: bool,
}

from_row!(VacuumHolder: what, name, pid, application, transactions, age as seconds, active);

impl VacuumHolder {
    /// Whether it is a claim of a relay, or a command, that may still take this long. Names of commands begin with that of the relay.
    pub fn is_ordinary_claim(&self, relay_name: &str, claim_within: Duration) -> bool {
        self.application.as_ref().is_some_and(|name| name.starts_with(relay_name))
            && self.age.is_none_or(|age| age < claim_within)
    }
}

/// The size of the outbox table. The numbers of rows are the latest estimates of vacuum or analyze.
#[derive(Clone, Debug, Serialize)]
pub struct Size {
    pub table_bytes: i64,
    pub index_bytes: i64,
    pub rows_estimated: i64,
    pub dead_rows_estimated: i64,
    #[serde(serialize_with = "as_time_if_any")]
    pub vacuumed_at: Option<SystemTime>,
    /// The pages of the table without TOAST, which the reaper scans.
    #[serde(skip)]
    pub pages: i64,
}

from_row!(Size: table_bytes, index_bytes, rows_estimated, dead_rows_estimated, vacuumed_at, pages);

const VERSIONS: &str = "
SELECT current_setting('server_version'),
       (SELECT number::text || ' ' || name FROM :migration ORDER BY number DESC LIMIT 1)";

/// From the first rows of the table by id.
const REAPED: &str = "
SELECT (extract(epoch FROM clock_timestamp()) - extract(epoch FROM min(sent_at)))::float8
FROM (SELECT sent_at FROM :named_rows ORDER BY id LIMIT $1::bigint) AS first";

/// Cumulative statistics. A server process updates them at most once per second, at the end of a transaction.
const COUNTERS: &str = "
SELECT n_tup_ins, n_tup_upd, n_tup_del, extract(epoch FROM clock_timestamp())::float8
FROM pg_stat_user_tables
WHERE relid = $1::text::regclass";

pub struct PostgresStatus {
    transaction: ShortTransaction,
    table: TableName,
    /// How topics are determined. Set it again once it is known whether the outbox has the column `topic`.
    pub topics: TopicRules,
    on_sent: OnSent,
}

impl PostgresStatus {
    /// For this outbox. Connects on first use. The server may work on each statement for `statement_timeout`, or as long as
    /// on other statements.
    pub fn new(
        database: Database,
        table: &TableName,
        topics: TopicRules,
        on_sent: OnSent,
        statement_timeout: Option<Duration>,
    ) -> PostgresStatus {
        let transaction = match statement_timeout {
            Some(limit) => ShortTransaction::reading_within(database, limit),
            None => ShortTransaction::reading(database),
        };
        PostgresStatus { transaction, table: table.clone(), topics, on_sent }
    }

    /// Reads everything. Relays are identified by their application name, or by the lanes that they have locked.
    pub async fn read(&self, relay_name: &str) -> Result<OutboxStatus, PostgresFault> {
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let lows = vec![i64::MIN; LANES];
        let marks = params![lanes => INT2_ARRAY, lows => INT8_ARRAY];
        let backlog = self.only(sql!("relay/backlog"), &marks).await?;
        // An epoch that no table has, so that no mark applies.
        let marks = params![lanes => INT2_ARRAY, lows => INT8_ARRAY, -1_i64 => INT8];
        let oldest = self.only(sql!("relay/oldest"), &marks).await?;
        let of_lanes = params![lanes => INT2_ARRAY, FIRST_ROWS_A_LANE => INT8];
        let first = FirstUnsent::from(&self.only(sql!("status/first_unsent"), &of_lanes).await?);
        let held = self.rows(sql!("status/held_topics"), &[]).await?;
        let most = params![DEAD_LETTERS_COUNTED_MAX => INT8];
        let dead_letters = self.all(sql!("status/dead_letters"), &most).await?;
        let most = params![BLOCKED_KEYS_COUNTED_MAX => INT8];
        let blocked = self.rows(sql!("status/blocked_keys"), &most).await?;
        let paused = self.rows(pauses::LIST, &params![PAUSES_LISTED_MAX => INT8]).await?;
        let relays = params![relay_name => TEXT, self.table.render("{lane}") => TEXT];
        let relays = self.all(sql!("status/relays"), &relays).await?;
        // With a backlog, the latest sent rows are before the first row that can be sent now.
        let latest = params![SENT_ROWS_READ_MAX => INT8, first.id => INT8];
        let sent = match self.on_sent {
            OnSent::Mark => Some(Sent::from(&self.only(sql!("status/sent"), &latest).await?)),
            OnSent::Delete => None,
        };
        let oldest_sent = self.only(REAPED, &params![SENT_ROWS_READ_MAX => INT8]).await?;
        let vacuum = self.all(sql!("status/vacuum_holders"), &params![1_i64 => INT8]).await?.pop();
        let size = self.only(sql!("status/size"), &params![self.table.quoted() => TEXT]).await?;
        let versions = self.only(VERSIONS, &[]).await?;
        let (rows, keys) = (backlog.get(0), blocked.first().map_or(0, |row| row.get(6)));
        Ok(OutboxStatus {
            server_version: versions.get(0),
            migration: versions.get(1),
            backlog: Backlog {
                rows,
                estimated: rows > BACKLOG_COUNTED_MAX,
                oldest_age: seconds(oldest.get(0)),
                first,
            },
            held_topics_total: held.first().map_or(0, |row| row.get(7)),
            held_topics: held.iter().map(HeldTopic::from).collect(),
            blocked_keys: BlockedKeys {
                keys,
                at_least: keys >= BLOCKED_KEYS_COUNTED_MAX,
                oldest: blocked.iter().map(KeyBlock::from).collect(),
            },
            paused_total: pauses::total(&paused),
            paused: paused.iter().map(PausedScope::from).collect(),
            dead_letters: DeadLetters::new(dead_letters),
            relays,
            sent,
            oldest_sent: seconds(oldest_sent.get(0)),
            vacuum,
            size: Size::from(&size),
        })
    }

    /// Reads the lanes with unsent rows, by number.
    pub async fn lanes(&self) -> Result<Vec<LaneStatus>, PostgresFault> {
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let params = params![lanes => INT2_ARRAY, FIRST_ROWS_A_LANE => INT8];
        self.all(sql!("status/lanes"), &params).await
    }

    /// Reads how many rows were inserted, marked and deleted since statistics began. Two calls give a rate.
    pub async fn counters(&self) -> Result<Counters, PostgresFault> {
        Ok(Counters::from(&self.only(COUNTERS, &params![self.table.quoted() => TEXT]).await?))
    }

    async fn rows(&self, text: &'static str, params: Params<'_>) -> Result<Vec<Row>, PostgresFault> {
        let sql = script(text, &self.table, &self.topics).render();
        self.transaction.query("reading the status", &sql, params).await
    }

    async fn all<T>(&self, text: &'static str, params: Params<'_>) -> Result<Vec<T>, PostgresFault>
    where
        T: for<'r> From<&'r Row>,
    {
        Ok(self.rows(text, params).await?.iter().map(T::from).collect())
    }

    /// The only row of a statement.
    async fn only(&self, text: &'static str, params: Params<'_>) -> Result<Row, PostgresFault> {
        let Some(row) = self.rows(text, params).await?.into_iter().next() else {
            unreachable!("each of these statements gives one row")
        };
        Ok(row)
    }
}

pub(crate) fn as_time<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time(*at))
}

pub(crate) fn as_time_if_any<S: Serializer>(
    at: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    at.map(time).serialize(serializer)
}

pub fn as_seconds<S: Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    age.map(|age| age.as_secs_f64()).serialize(serializer)
}

/// `None` for infinite and negative ages, which a writer can cause.
fn seconds(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_publishing_even_if_its_state_is_hidden() {
        assert_eq!(doing(Some("idle in transaction"), Some("Client"), true), Doing::Publishing);
        assert_eq!(doing(None, None, true), Doing::Publishing);
        assert_eq!(doing(Some("active"), Some("Lock"), true), Doing::WaitingForALock);
        assert_eq!(doing(Some("active"), None, false), Doing::Working);
        assert_eq!(doing(Some("idle"), Some("Client"), false), Doing::Idle);
        assert_eq!(doing(None, None, false), Doing::Hidden);
    }
}
