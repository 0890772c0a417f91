//! What the database alone tells about an outbox and its relays. Every statement is bounded, whatever the table holds.

mod relays;
mod sent;
mod server;
mod waiting;

pub(crate) use crate::postgres::diagnose::holders::HoldsVacuum;
#[cfg(test)]
pub(crate) use relays::Doing;
pub(crate) use relays::RelayConnection;
pub(crate) use sent::{Counters, Latency, Reaping, SENT_ROWS_LOOKED_AT_MAX, Sent};
pub(crate) use server::{Size, Versions};
pub(crate) use waiting::{
    BACKLOG_COUNTED_MAX, BLOCKED_KEYS_COUNTED_MAX, Blocked, DEAD_LETTERS_COUNTED_MAX, First, HeldTopic,
    PAUSES_NAMED_MAX,
};

use crate::config;
use crate::postgres::connection::connect::Database;
use crate::postgres::connection::transaction::{Params, ShortTransaction};
use crate::postgres::cycle::statements::scout::{BACKLOG, OLDEST};
use crate::postgres::diagnose::holders::{HOLDERS, holder};
use crate::postgres::operate::pauses::{self, PausedScope};
use crate::postgres::table::TableName;
use crate::relay::failure::Fault;
use crate::relay::lane::{LANES, Lane};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// How an outbox stands.
#[derive(Clone, Debug)]
pub(crate) struct OutboxStatus {
    /// Of the server and the schema.
    pub versions: Versions,
    /// Unsent rows; above [`BACKLOG_COUNTED_MAX`] an estimate.
    pub backlog_rows: i64,
    /// The age of the oldest of them, whatever it waits for.
    pub oldest: Option<Duration>,
    /// What those wait for that come first.
    pub first: First,
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
    /// The connections of relays, at most 200.
    pub relays: Vec<RelayConnection>,
    /// What the latest sent rows tell; nothing if rows are deleted when they are sent.
    pub sent: Option<Sent>,
    /// How far the reaper has come.
    pub reaping: Reaping,
    /// What holds vacuum back most, if anything does.
    pub vacuum: Option<HoldsVacuum>,
    /// Table and indexes.
    pub size: Size,
}

/// Asks about one outbox.
pub(crate) struct PostgresStatus {
    transaction: ShortTransaction,
    table: TableName,
    /// The statement of [`First`], which depends on the template of topics.
    first: String,
    on_sent: config::OnSent,
}

impl PostgresStatus {
    /// About this outbox. Connects when it is first needed.
    pub(crate) fn new(database: Database, outbox: &config::Outbox) -> PostgresStatus {
        PostgresStatus {
            transaction: ShortTransaction::reading(database),
            table: outbox.table.clone(),
            first: waiting::first(&outbox.table, &outbox.topic),
            on_sent: outbox.on_sent,
        }
    }

    /// Everything. Relays are known by their application name, and by the lanes that they hold.
    pub(crate) async fn read(&self, relay_name: &str) -> Result<OutboxStatus, Fault> {
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let lows = vec![i64::MIN; LANES];
        let backlog = self.one(BACKLOG.sql, &[(&lanes, Type::INT2_ARRAY), (&lows, Type::INT8_ARRAY)]).await?;
        let oldest = self.one(OLDEST.sql, &[(&lanes, Type::INT2_ARRAY)]).await?;
        let rows = waiting::FIRST_ROWS_A_LANE;
        let first = self.only(&self.first, &[(&lanes, Type::INT2_ARRAY), (&rows, Type::INT8)]).await?;
        let first = First::from(&first);
        let held = self.all(waiting::HELD, &[]).await?;
        let dead = self.all(waiting::DEAD_LETTERS, &[(&DEAD_LETTERS_COUNTED_MAX, Type::INT8)]).await?;
        let blocked = self.all(waiting::BLOCKED, &[(&BLOCKED_KEYS_COUNTED_MAX, Type::INT8)]).await?;
        let paused = self.all(pauses::LIST, &[(&PAUSES_NAMED_MAX, Type::INT8)]).await?;
        let lane = self.table.lane();
        let relays = self.all(relays::RELAYS, &[(&relay_name, Type::TEXT), (&lane, Type::TEXT)]).await?;
        let sent = self.sent(first.id).await?;
        let reaping = self.one(sent::REAPED, &[(&SENT_ROWS_LOOKED_AT_MAX, Type::INT8)]).await?;
        let vacuum = self.all(HOLDERS, &[(&1_i64, Type::INT8)]).await?;
        let size = self.one(server::SIZE, &[(&self.table.quoted(), Type::TEXT)]).await?;
        let versions = self.one(server::VERSIONS, &[]).await?;
        Ok(OutboxStatus {
            versions: Versions::from(&versions),
            backlog_rows: backlog.get(0),
            oldest: seconds(oldest.get(0)),
            first,
            held: held.iter().map(HeldTopic::from).collect(),
            dead_letters: dead.iter().map(|row| (row.get(0), row.get(1))).collect(),
            blocked_keys: blocked.first().map_or(0, |row| row.get(5)),
            blocked: blocked.iter().map(Blocked::from).collect(),
            paused: paused.iter().map(pauses::paused).collect(),
            relays: relays.iter().map(RelayConnection::from).collect(),
            sent,
            reaping: Reaping::from(&reaping),
            vacuum: vacuum.first().map(holder),
            size: Size::from(&size),
        })
    }

    /// The latest rows, and those before the first one that could be sent now: with a backlog, all of the latest wait.
    async fn sent(&self, first_unsent: Option<i64>) -> Result<Option<Sent>, Fault> {
        if self.on_sent == config::OnSent::Delete {
            return Ok(None);
        }
        let looked = self
            .one(sent::SENT, &[(&SENT_ROWS_LOOKED_AT_MAX, Type::INT8), (&first_unsent, Type::INT8)])
            .await?;
        Ok(Some(Sent::from(&looked)))
    }

    /// How many rows were ever inserted, marked and deleted, for rates: two readings some time apart.
    pub(crate) async fn counters(&self) -> Result<Counters, Fault> {
        let row = self.one(sent::COUNTERS, &[(&self.table.quoted(), Type::TEXT)]).await?;
        Ok(Counters::from(&row))
    }

    async fn all(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        self.transaction.query("reading the status", &self.table.render(sql), params).await
    }

    async fn one(&self, sql: &str, params: Params<'_>) -> Result<Row, Fault> {
        self.only(&self.table.render(sql), params).await
    }

    /// The only row of a statement without placeholders.
    async fn only(&self, sql: &str, params: Params<'_>) -> Result<Row, Fault> {
        let rows = self.transaction.query("reading the status", sql, params).await?;
        let Some(row) = rows.into_iter().next() else {
            unreachable!("each of these statements gives one row")
        };
        Ok(row)
    }
}

/// Infinite and negative ages, which a writer can make, are none.
pub(super) fn seconds(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}
