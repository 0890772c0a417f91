//! The rows of the outbox for `verify` and `replay`, sent or not, in the order of their ids.
//!
//! Each batch that is read has its own READ ONLY transaction of one statement. It takes no lock that a writer or a claim waits
//! for, and does not hold back vacuum for long.
//!
//! A replay publishes sent events again: it sets `sent_at` back to NULL, so that relays publish the rows in order. The rows are
//! below the low-water marks of the relays. The statement therefore fires the trigger that counts ended holds. The marks become
//! invalid in the same snapshot in which the rows become visible, and every claim reads the rows of a key in order. Every time,
//! the relays read their lanes from the first row again, so only batches with selected rows run it.

use crate::columns::PayloadType;
use crate::connection::errors::fault;
use crate::connection::exec::{Param, ShortTransaction};
use crate::connection::pool::Database;
use crate::cycle::row::OutboxRow;
use crate::cycle::statements::topic_of_target_sql;
use crate::operate::rejected::Batch;
use crate::sql::{Script, sql};
use crate::table::TableName;
use relay::failure::PostgresFault;
use relay::outbox::Event;
use relay::topic::TopicRules;
use std::time::SystemTime;
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
    fn params<'a>(&'a self, numbers: &'a [i64]) -> Vec<Param<'a>> {
        let mut params = Vec::from(params![
            self.since => TIMESTAMPTZ, self.until => TIMESTAMPTZ, self.topic => TEXT, self.key => TEXT,
            self.event_ids => UUID_ARRAY, self.by_created => BOOL, self.sent_before => TIMESTAMPTZ
        ]);
        params.extend(numbers.iter().flat_map(|number| params![*number => INT8]));
        params
    }
}

/// The server's time, and the ids that exist; both 0 if there is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub now: SystemTime,
    pub lowest: i64,
    pub highest: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRange {
    /// The rows that are read whole, if they were sent.
    pub selection: SentSelection,
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
        let (is_in_range, is_read) = (row.try_get("is_in_range")?, row.try_get("is_read")?);
        let sent_at = row.try_get("sent_at")?;
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

/// The selected rows of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected<T> {
    pub rows: T,
    /// Where the next batch continues; `None` if no rows are left.
    pub reached: Option<i64>,
}

pub struct PostgresHistory {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    topics: TopicRules,
    payload: PayloadType,
}

impl PostgresHistory {
    /// For this outbox. Connects on first use.
    pub fn new(
        database: Database,
        table: TableName,
        topics: TopicRules,
        payload: PayloadType,
    ) -> PostgresHistory {
        let reading = ShortTransaction::reading(database.clone());
        PostgresHistory { reading, operating: ShortTransaction::operating(database), table, topics, payload }
    }

    /// A statement on rows `o` of the table itself, with the conditions for rows in the range, and for those that were sent too.
    fn script(&self, text: &'static str) -> Script<'_> {
        let topic = topic_of_target_sql(&self.table, &self.topics);
        let selected = |sent_only| {
            let selected =
                Script::new(sql!("operate/sent/selected"), &self.table).set("topic", topic.clone());
            selected.when("sent_only", sent_only).render()
        };
        let (in_range, selected) = (selected(false), selected(true));
        let script = Script::new(text, &self.table).set("in_range", in_range).set("selected", selected);
        script.set("topic", topic)
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
        let sql = self
            .script(sql!("operate/sent/rows"))
            .set("payload_length", self.payload.length_sql("o.payload"))
            .when("has_topic", self.topics.column)
            .render();
        let rows = self.reading.query(DOING, &sql, &range.selection.params(&numbers)).await?;
        rows.into_iter().map(|row| HistoryRow::new(row).map_err(|error| fault(DOING, error))).collect()
    }

    /// What the next records after this id tell about events. Leaves out records about something else.
    pub async fn other_ids(
        &self,
        kind: OtherIds,
        after: i64,
    ) -> Result<Selected<Vec<(Uuid, Recorded)>>, PostgresFault> {
        let (doing, text) = match kind {
            OtherIds::DeadLetters => (
                "reading the dead letters",
                "SELECT d.id, d.event_id, NULL, NULL FROM :dead_letter d WHERE d.id > $1::bigint ORDER BY d.id LIMIT $2::bigint",
            ),
            OtherIds::Acts => ("reading the history", sql!("operate/sent/acts")),
        };
        let params = params![after => INT8, BATCH_IDS => INT8];
        let rows = self.reading.query(doing, &Script::new(text, &self.table).render(), &params).await?;
        let recorded = |row: &Row| {
            let what = match (row.get::<_, Option<&str>>(2), row.get::<_, Option<String>>(3)) {
                (Some("replay"), _) => Recorded::Replay,
                (Some("copy"), Some(topic)) => Recorded::Copy(topic),
                _ => Recorded::DeadLetter,
            };
            Some((row.get::<_, Option<Uuid>>(1)?, what))
        };
        let reached = rows.last().map(|row| row.get(0));
        Ok(Selected { rows: rows.iter().filter_map(recorded).collect(), reached })
    }

    /// Counts the selected rows of a batch by topic.
    pub async fn count(
        &self,
        selection: &SentSelection,
        batch: Batch,
    ) -> Result<Selected<Vec<(String, u64)>>, PostgresFault> {
        let mut counted = Selected { rows: Vec::new(), reached: None };
        for row in self.read_batch(true, selection, batch).await? {
            match row.get::<_, Option<String>>(0) {
                Some(topic) => counted.rows.push((topic, row.get::<_, i64>(1).unsigned_abs())),
                None => counted.reached = row.get(2),
            }
        }
        Ok(counted)
    }

    pub async fn pick(
        &self,
        selection: &SentSelection,
        batch: Batch,
    ) -> Result<Selected<Vec<i64>>, PostgresFault> {
        let rows = self.read_batch(false, selection, batch).await?;
        let Some(row) = rows.first() else { unreachable!("the statement returns a row") };
        Ok(Selected { rows: row.get(0), reached: row.get(1) })
    }

    async fn read_batch(
        &self,
        counts: bool,
        selection: &SentSelection,
        batch: Batch,
    ) -> Result<Vec<Row>, PostgresFault> {
        let numbers = [batch.after, batch.up_to, SCANNED_ROWS, batch.rows];
        let script = self.script(sql!("operate/sent/batch")).when("counts", counts);
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
        params.extend(params![ids => INT8_ARRAY, reason => TEXT]);
        let script = self.script(sql!("operate/sent/replay"));
        let rows = self.operating.query("replaying events", &script.render(), &params).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).unsigned_abs())).collect())
    }

    /// Records that these events were published to another topic.
    pub async fn record_copies(
        &self,
        copied: &[&HistoryRow],
        topic: &str,
        reason: &str,
    ) -> Result<(), PostgresFault> {
        let ids: Vec<i64> = copied.iter().map(|row| row.id()).collect();
        let event_ids: Vec<Uuid> = copied.iter().map(|row| row.event.event_id()).collect();
        let types: Vec<_> =
            copied.iter().map(|row| String::from_utf8_lossy(row.event.aggregate_type())).collect();
        let params = params![
            ids => INT8_ARRAY, event_ids => UUID_ARRAY, types => TEXT_ARRAY, topic => TEXT, reason => TEXT
        ];
        let sql = "SELECT {record_act}('copy', $1::bigint[], $2::uuid[], $3::text[], array_fill($4::text, ARRAY[cardinality($1)]), $5::text)";
        self.operating.query("recording a replay", &self.table.render(sql), &params).await.map(drop)
    }
}
