//! The state of an outbox and its relays, from the database alone. Every statement reads a bounded number of rows.

mod relays;
mod sent;
mod server;
mod waiting;

pub use crate::diagnose::holders::VacuumHolder;
pub use relays::{Doing, RelayConnection};
pub use sent::{Counters, Latency, Reaping, SENT_ROWS_READ_MAX, Sent};
pub use server::{Size, Versions};
pub use waiting::{
    BACKLOG_COUNTED_MAX, BLOCKED_KEYS_COUNTED_MAX, DEAD_LETTERS_COUNTED_MAX, FIRST_ROWS_A_LANE, FirstUnsent,
    HeldTopic, KeyBlock, LaneStatus, PAUSES_LISTED_MAX, RejectedEvents,
};

use crate::connection::connect::Database;
use crate::connection::transaction::{Params, ShortTransaction};
use crate::cycle::statements::oldest_sql;
use crate::cycle::statements::scout::BACKLOG;
use crate::diagnose::holders::{HOLDERS, holder};
use crate::operate::pauses::{self, PausedScope};
use crate::options::OnSent;
use crate::table::TableName;
use relay::failure::PostgresFault;
use relay::lanes::{LANES, Lane};
use relay::topic::TopicRules;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The state of an outbox.
#[derive(Clone, Debug)]
pub struct OutboxStatus {
    pub versions: Versions,
    /// Unsent rows; an estimate above [`BACKLOG_COUNTED_MAX`].
    pub backlog_rows: i64,
    /// The age of the oldest unsent row, whether or not it can be sent now.
    pub oldest: Option<Duration>,
    pub first: FirstUnsent,
    /// The number of held topics.
    pub held_topics: i64,
    /// The longest held first, at most 100.
    pub held: Vec<HeldTopic>,
    /// The number of dead letters that were not requeued, by reason, among the latest [`DEAD_LETTERS_COUNTED_MAX`].
    pub dead_letters: Vec<RejectedEvents>,
    /// The number of blocked keys, counted up to [`BLOCKED_KEYS_COUNTED_MAX`].
    pub blocked_keys: i64,
    /// The oldest blocks, at most 5.
    pub blocked: Vec<KeyBlock>,
    /// The oldest pauses, at most [`PAUSES_LISTED_MAX`].
    pub paused: Vec<PausedScope>,
    /// At most 200.
    pub relays: Vec<RelayConnection>,
    /// `None` with `on_sent = "delete"`.
    pub sent: Option<Sent>,
    pub reaping: Reaping,
    /// The oldest holder, if there is one.
    pub vacuum: Option<VacuumHolder>,
    pub size: Size,
}

/// Reads the state of one outbox.
pub struct PostgresStatus {
    transaction: ShortTransaction,
    table: TableName,
    /// The statement for [`FirstUnsent`], which depends on the topic template.
    first: String,
    /// The statement for the oldest unsent row.
    oldest: String,
    on_sent: OnSent,
}

impl PostgresStatus {
    /// For this outbox. Connects on first use. The server may work on each statement for `statement_timeout`, or as long as
    /// on other statements.
    pub fn new(
        database: Database,
        table: &TableName,
        topics: &TopicRules,
        on_sent: OnSent,
        statement_timeout: Option<Duration>,
    ) -> PostgresStatus {
        let transaction = match statement_timeout {
            Some(limit) => ShortTransaction::reading_within(database, limit),
            None => ShortTransaction::reading(database),
        };
        PostgresStatus {
            transaction,
            table: table.clone(),
            first: waiting::first(table, topics),
            oldest: oldest_sql(table, topics),
            on_sent,
        }
    }

    /// Sets how topics are determined, once it is known whether the outbox has the column `topic`.
    pub fn set_topics(&mut self, topics: &TopicRules) {
        self.first = waiting::first(&self.table, topics);
    }

    /// Reads everything. Relays are identified by their application name, or by the lanes that they have locked.
    pub async fn read(&self, relay_name: &str) -> Result<OutboxStatus, PostgresFault> {
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let lows = vec![i64::MIN; LANES];
        let backlog = self.one(BACKLOG.sql, &[(&lanes, Type::INT2_ARRAY), (&lows, Type::INT8_ARRAY)]).await?;
        // A basis that no table has, so that no mark applies.
        let marks: Params<'_> =
            &[(&lanes, Type::INT2_ARRAY), (&lows, Type::INT8_ARRAY), (&-1_i64, Type::INT8)];
        let oldest = self.only(&self.oldest, marks).await?;
        let rows = FIRST_ROWS_A_LANE;
        let first = self.only(&self.first, &[(&lanes, Type::INT2_ARRAY), (&rows, Type::INT8)]).await?;
        let first = FirstUnsent::from(&first);
        let held = self.all(waiting::HELD, &[]).await?;
        let dead = self.all(waiting::DEAD_LETTERS, &[(&DEAD_LETTERS_COUNTED_MAX, Type::INT8)]).await?;
        let blocked = self.all(waiting::BLOCKED, &[(&BLOCKED_KEYS_COUNTED_MAX, Type::INT8)]).await?;
        let paused = self.all(pauses::LIST, &[(&PAUSES_LISTED_MAX, Type::INT8)]).await?;
        let lane = self.table.lane();
        let relays = self.all(relays::RELAYS, &[(&relay_name, Type::TEXT), (&lane, Type::TEXT)]).await?;
        let sent = self.sent(first.id).await?;
        let reaping = self.one(sent::REAPED, &[(&SENT_ROWS_READ_MAX, Type::INT8)]).await?;
        let vacuum = self.all(HOLDERS, &[(&1_i64, Type::INT8)]).await?;
        let size = self.one(server::SIZE, &[(&self.table.quoted(), Type::TEXT)]).await?;
        let versions = self.one(server::VERSIONS, &[]).await?;
        Ok(OutboxStatus {
            versions: Versions::from(&versions),
            backlog_rows: backlog.get(0),
            oldest: seconds(oldest.get(0)),
            first,
            held_topics: held.first().map_or(0, |row| row.get(6)),
            held: held.iter().map(HeldTopic::from).collect(),
            dead_letters: dead.iter().map(RejectedEvents::from).collect(),
            blocked_keys: blocked.first().map_or(0, |row| row.get(5)),
            blocked: blocked.iter().map(KeyBlock::from).collect(),
            paused: paused.iter().map(pauses::paused).collect(),
            relays: relays.iter().map(RelayConnection::from).collect(),
            sent,
            reaping: Reaping::from(&reaping),
            vacuum: vacuum.first().map(holder),
            size: Size::from(&size),
        })
    }

    /// Reads the lanes with unsent rows, by number.
    pub async fn lanes(&self) -> Result<Vec<LaneStatus>, PostgresFault> {
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let rows = FIRST_ROWS_A_LANE;
        let rows = self.all(waiting::LANES, &[(&lanes, Type::INT2_ARRAY), (&rows, Type::INT8)]).await?;
        Ok(rows.iter().map(LaneStatus::from).collect())
    }

    /// Reads the latest sent rows. With a backlog, these are before the first row that can be sent now.
    async fn sent(&self, first_unsent: Option<i64>) -> Result<Option<Sent>, PostgresFault> {
        if self.on_sent == OnSent::Delete {
            return Ok(None);
        }
        let row =
            self.one(sent::SENT, &[(&SENT_ROWS_READ_MAX, Type::INT8), (&first_unsent, Type::INT8)]).await?;
        Ok(Some(Sent::from(&row)))
    }

    /// Reads how many rows were inserted, marked and deleted since statistics began. Two calls give a rate.
    pub async fn counters(&self) -> Result<Counters, PostgresFault> {
        let row = self.one(sent::COUNTERS, &[(&self.table.quoted(), Type::TEXT)]).await?;
        Ok(Counters::from(&row))
    }

    async fn all(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, PostgresFault> {
        self.transaction.query("reading the status", &self.table.render(sql), params).await
    }

    async fn one(&self, sql: &str, params: Params<'_>) -> Result<Row, PostgresFault> {
        self.only(&self.table.render(sql), params).await
    }

    /// The only row of a statement without placeholders for names.
    async fn only(&self, sql: &str, params: Params<'_>) -> Result<Row, PostgresFault> {
        let rows = self.transaction.query("reading the status", sql, params).await?;
        let Some(row) = rows.into_iter().next() else {
            unreachable!("each of these statements gives one row")
        };
        Ok(row)
    }
}

/// `None` for infinite and negative ages, which a writer can cause.
pub(super) fn seconds(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}
