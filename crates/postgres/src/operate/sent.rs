//! The rows of the outbox for `verify` and `replay`, sent or not, in the order of their ids.
//!
//! Each batch that is read has its own READ ONLY transaction of one statement. It takes no lock that a writer or a claim waits
//! for, and does not hold back vacuum for long.
//!
//! A replay publishes sent events again: it sets `sent_at` back to NULL, so that relays publish the rows in order. The rows are
//! below the low-water marks of the relays. The statement therefore fires the trigger that counts ended holds. The marks become
//! invalid in the same snapshot in which the rows become visible, and every claim reads the rows of a key in order. Every time,
//! the relays read their lanes from the first row again, so only batches with selected rows run it.

use crate::columns::{Column, PayloadType};
use crate::connection::errors::fault;
use crate::connection::exec::{Params, ShortTransaction};
use crate::connection::pool::Database;
use crate::cycle::row::OutboxRow;
use crate::cycle::statements::topic_of_target_sql;
use crate::sql::{Script, sql};
use crate::table::TableName;
use relay::event::Event;
use relay::failure::PostgresFault;
use relay::topic::TopicRules;
use std::time::SystemTime;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

const DOING: &str = "reading sent events";
const BATCH_ROWS: i64 = 2_000;
/// A batch ends with the row that exceeds this size.
const BATCH_BYTES: i64 = 8 * 1024 * 1024;
/// An id without a payload is small.
const BATCH_IDS: i64 = 10_000;
/// Rows per statement when few of them are selected.
const SCANNED_ROWS: i64 = 10_000;

/// The positions of the columns that follow those of the claim's read.
mod column {
    pub(super) const IS_IN_RANGE: usize = 12;
    pub(super) const IS_READ: usize = 13;
    pub(super) const SENT_AT: usize = 14;
}

/// Conditions that must all match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentSelection {
    /// Whether the times are those of `created_at` instead of `sent_at`.
    pub by_created: bool,
    /// From this time on.
    pub since: Option<SystemTime>,
    /// Before this time.
    pub until: Option<SystemTime>,
    pub topic: Option<String>,
    /// The Kafka key, `aggregate_id`.
    pub key: Option<String>,
    pub event_ids: Option<Vec<Uuid>>,
    /// Sent before this time, whatever the range applies to.
    pub sent_before: Option<SystemTime>,
}

impl SentSelection {
    /// The parameters of `sql/operate/sent/selected.sql`, and then these.
    fn params<'a>(&'a self, numbers: &'a [i64]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&self.since, Type::TIMESTAMPTZ),
            (&self.until, Type::TIMESTAMPTZ),
            (&self.topic, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.event_ids, Type::UUID_ARRAY),
            (&self.by_created, Type::BOOL),
            (&self.sent_before, Type::TIMESTAMPTZ),
        ];
        params.extend(numbers.iter().map(|number| (number as &(dyn ToSql + Sync), Type::INT8)));
        params
    }
}

/// A statement on rows `o` of the table itself, with the conditions for rows in the range, and for those that were sent too.
fn script<'a>(text: &'static str, table: &'a TableName, topics: &TopicRules) -> Script<'a> {
    let topic = topic_of_target_sql(table, topics);
    let selected = |sent_only| {
        let selected = Script::new(sql!("operate/sent/selected"), table).set("topic", topic.clone());
        selected.when("sent_only", sent_only).render()
    };
    let (in_range, selected) = (selected(false), selected(true));
    Script::new(text, table).set("in_range", in_range).set("selected", selected).set("topic", topic)
}

/// The server's time, and the ids that exist; both 0 if there is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub now: SystemTime,
    pub lowest: i64,
    pub highest: i64,
}

/// Which rows are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRange {
    /// The rows that are read whole, if they were sent.
    pub selection: SentSelection,
    /// The highest id.
    pub highest: i64,
    /// `message.max.bytes`. Larger rows are read without their payload and headers.
    pub record_bytes_max: i64,
}

/// A row. Its event is complete if it was sent and is selected.
pub struct HistoryRow {
    pub event: OutboxRow,
    /// Whether it is selected, sent or not.
    pub is_in_range: bool,
    /// Whether the event is complete.
    pub is_read: bool,
    /// `None` if it was not sent, or if the time is infinite.
    pub sent_at: Option<SystemTime>,
}

impl HistoryRow {
    fn new(row: Row) -> Result<HistoryRow, Error> {
        let (is_in_range, is_read) = (row.try_get(column::IS_IN_RANGE)?, row.try_get(column::IS_READ)?);
        let sent_at = row.try_get(column::SENT_AT)?;
        Ok(HistoryRow { event: OutboxRow::new(row)?, is_in_range, is_read, sent_at })
    }

    pub fn id(&self) -> i64 {
        self.event.id()
    }
}

/// Where event ids are recorded in addition to the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherIds {
    DeadLetters,
    /// Discarded dead letters, and replayed and copied events.
    Acts,
}

/// A record of an event id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherId {
    /// Where the next read continues.
    pub id: i64,
    /// `None` if the record is about something else.
    pub event_id: Option<Uuid>,
    pub what: Recorded,
}

/// What is recorded about an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is, or was, a dead letter.
    DeadLetter,
    /// It was replayed in place.
    Replay,
    /// It was copied to this topic.
    Copy(String),
}

/// The history of one outbox.
pub struct PostgresHistory {
    reading: ShortTransaction,
    table: TableName,
    topics: TopicRules,
    payload: PayloadType,
}

impl PostgresHistory {
    /// For this outbox. Connects on first use.
    pub fn new(
        database: Database,
        table: &TableName,
        topics: TopicRules,
        payload: PayloadType,
    ) -> PostgresHistory {
        let table = table.clone();
        PostgresHistory { reading: ShortTransaction::reading(database), table, topics, payload }
    }

    pub async fn bounds(&self) -> Result<Bounds, PostgresFault> {
        let sql = "SELECT clock_timestamp(), (SELECT min({id_column}) FROM {outbox}), (SELECT max({id_column}) FROM {outbox})";
        let rows = self.reading.query(DOING, &self.table.render(sql), &[]).await?;
        let Some(row) = rows.first() else { unreachable!("the statement returns a row") };
        let id = |column| row.get::<_, Option<i64>>(column).unwrap_or(0);
        Ok(Bounds { now: row.get(0), lowest: id(1), highest: id(2) })
    }

    /// The next rows after this id; empty at the end.
    pub async fn rows(&self, range: &HistoryRange, after: i64) -> Result<Vec<HistoryRow>, PostgresFault> {
        let numbers = [after, range.highest, BATCH_BYTES, range.record_bytes_max, BATCH_ROWS];
        let sql = script(sql!("operate/sent/rows"), &self.table, &self.topics)
            .set("payload_length", self.payload.length_sql(&self.table.column_of("o", Column::Payload)))
            .when("has_topic", self.topics.column)
            .render();
        let rows = self.reading.query(DOING, &sql, &range.selection.params(&numbers)).await?;
        rows.into_iter().map(|row| HistoryRow::new(row).map_err(|error| fault(DOING, error))).collect()
    }

    /// The next records after this id; empty at the end.
    pub async fn other_ids(&self, kind: OtherIds, after: i64) -> Result<Vec<OtherId>, PostgresFault> {
        let (doing, text) = match kind {
            OtherIds::DeadLetters => (
                "reading the dead letters",
                "SELECT d.id, d.event_id, NULL, NULL FROM :dead_letter d WHERE d.id > $1::bigint ORDER BY d.id LIMIT $2::bigint",
            ),
            OtherIds::Acts => ("reading the history", sql!("operate/sent/acts")),
        };
        let params: Params<'_> = &[(&after, Type::INT8), (&BATCH_IDS, Type::INT8)];
        let rows = self.reading.query(doing, &Script::new(text, &self.table).render(), params).await?;
        Ok(rows.iter().map(OtherId::from).collect())
    }
}

impl From<&Row> for OtherId {
    fn from(row: &Row) -> OtherId {
        let what = match (row.get::<_, Option<&str>>(2), row.get::<_, Option<String>>(3)) {
            (Some("replay"), _) => Recorded::Replay,
            (Some("copy"), Some(topic)) => Recorded::Copy(topic),
            _ => Recorded::DeadLetter,
        };
        OtherId { id: row.get(0), event_id: row.get(1), what }
    }
}

/// One transaction: rows with an id above `after` and up to `up_to`, at most `rows` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayBatch {
    pub after: i64,
    pub up_to: i64,
    pub rows: i64,
}

/// The selected rows of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picked {
    pub ids: Vec<i64>,
    /// Where the next batch continues; `None` if no rows are left.
    pub reached: Option<i64>,
}

/// The number of selected rows of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// By topic.
    pub topics: Vec<(String, u64)>,
    /// Where the next batch continues; `None` if no rows are left.
    pub reached: Option<i64>,
}

/// An event that was published to another topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    pub id: i64,
    pub event_id: Uuid,
    pub aggregate_type: String,
}

/// Replays of one outbox.
pub struct PostgresReplay {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    topics: TopicRules,
}

impl PostgresReplay {
    /// For this outbox. Connects on first use.
    pub fn new(database: Database, table: TableName, topics: TopicRules) -> PostgresReplay {
        let reading = ShortTransaction::reading(database.clone());
        PostgresReplay { reading, operating: ShortTransaction::operating(database), table, topics }
    }

    /// Counts the selected rows of a batch.
    pub async fn count(
        &self,
        selection: &SentSelection,
        batch: ReplayBatch,
    ) -> Result<Counted, PostgresFault> {
        let mut counted = Counted::default();
        for row in self.read(true, selection, batch).await? {
            match row.get::<_, Option<String>>(0) {
                Some(topic) => counted.topics.push((topic, row.get::<_, i64>(1).unsigned_abs())),
                None => counted.reached = row.get(2),
            }
        }
        Ok(counted)
    }

    /// Finds the selected rows of a batch.
    pub async fn pick(&self, selection: &SentSelection, batch: ReplayBatch) -> Result<Picked, PostgresFault> {
        let rows = self.read(false, selection, batch).await?;
        Ok(rows.first().map_or_else(Picked::default, |row| Picked { ids: row.get(0), reached: row.get(1) }))
    }

    async fn read(
        &self,
        counts: bool,
        selection: &SentSelection,
        batch: ReplayBatch,
    ) -> Result<Vec<Row>, PostgresFault> {
        let numbers = [batch.after, batch.up_to, SCANNED_ROWS, batch.rows];
        let script = script(sql!("operate/sent/batch"), &self.table, &self.topics).when("counts", counts);
        self.reading.query(DOING, &script.render(), &selection.params(&numbers)).await
    }

    /// Sets these rows back to unsent if they are still selected, and records each. Returns the number of events of each
    /// topic. If the future is dropped, the outcome is unknown.
    pub async fn replay(
        &self,
        selection: &SentSelection,
        ids: &[i64],
        reason: &str,
    ) -> Result<Vec<(String, u64)>, PostgresFault> {
        let mut params = selection.params(&[]);
        params.push((&ids, Type::INT8_ARRAY));
        params.push((&reason, Type::TEXT));
        let script = script(sql!("operate/sent/replay"), &self.table, &self.topics);
        let rows = self.operating.query("replaying events", &script.render(), &params).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).unsigned_abs())).collect())
    }

    /// Records that these events were published to another topic.
    pub async fn record_copies(
        &self,
        copied: &[Copied],
        topic: &str,
        reason: &str,
    ) -> Result<(), PostgresFault> {
        let ids: Vec<i64> = copied.iter().map(|event| event.id).collect();
        let event_ids: Vec<Uuid> = copied.iter().map(|event| event.event_id).collect();
        let types: Vec<&str> = copied.iter().map(|event| event.aggregate_type.as_str()).collect();
        let params: Params<'_> = &[
            (&ids, Type::INT8_ARRAY),
            (&event_ids, Type::UUID_ARRAY),
            (&types, Type::TEXT_ARRAY),
            (&topic, Type::TEXT),
            (&reason, Type::TEXT),
        ];
        let sql = "SELECT {record_act}('copy', $1::bigint[], $2::uuid[], $3::text[], array_fill($4::text, ARRAY[cardinality($1)]), $5::text)";
        self.operating.query("recording a replay", &self.table.render(sql), params).await.map(drop)
    }
}
