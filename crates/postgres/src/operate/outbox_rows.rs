//! Reads the rows of the outbox, sent or not, in the order of their ids.
//!
//! Each batch has its own READ ONLY transaction of one statement. It takes no lock that a writer or a claim waits for, and
//! does not hold back vacuum for long.

use crate::connection::connect::Database;
use crate::connection::fault::fault;
use crate::connection::transaction::ShortTransaction;
use crate::cycle::event::OutboxRow;
use crate::operate::sent::{SELECTION_PARAMS, SentSelection};
use crate::payload::PayloadType;
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

/// The server's time, and the ids that exist.
const BOUNDS: &str = "
SELECT clock_timestamp(), (SELECT min({id_column}) FROM {outbox}), (SELECT max({id_column}) FROM {outbox})";

/// The first columns are those of the claim's read, so that a row becomes the same event. Only selected rows are read whole,
/// unless they are too large for a record. As in the claim's read, the binary form of headers has up to three times as many
/// bytes as a record, hence the division by 4.
const ROWS: &str = "
SELECT 0::bigint, 0::bigint, p.id, 0::smallint, p.event_id,
       CASE WHEN p.is_read THEN p.aggregate_type END,
       CASE WHEN p.is_read THEN p.aggregate_id END,
       CASE WHEN p.is_read THEN p.event_type END,
       CASE WHEN NOT p.is_too_large THEN p.payload END,
       CASE WHEN p.is_too_large THEN p.texts + p.headers_bytes END,
       CASE WHEN NOT p.is_too_large THEN p.headers END,
       p.created_at, p.is_in_range, p.is_read, p.sent_at{p_topic}
FROM (
    SELECT s.*, s.texts > $11::bigint OR s.headers_bytes / 4 > $11::bigint AS is_too_large,
           coalesce(sum(s.texts + s.headers_bytes)
                    OVER (ORDER BY s.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM (
        SELECT {whole_event},{o_topic}
               CASE WHEN isfinite(o.{sent_at_column}) THEN o.{sent_at_column} END AS sent_at,
               coalesce({in_range}, false) AS is_in_range,
               {fits} AS is_read,
               CASE WHEN {fits}
                    THEN coalesce({length}, 0)::bigint + octet_length(o.{aggregate_id_column})
                             + octet_length(o.{event_type_column})
               END AS texts,
               CASE WHEN {fits} THEN coalesce(pg_column_size(o.{headers_column} #> '{}'), 0) END AS headers_bytes
        FROM {outbox} o
        WHERE o.{id_column} > $8::bigint AND o.{id_column} <= $9::bigint
        ORDER BY o.{id_column}
        LIMIT $12::bigint
    ) s
) p
WHERE p.before < $10::bigint
ORDER BY p.id";

const DEAD_LETTERS: &str = "
SELECT d.id, d.event_id, NULL, NULL FROM {dead_letter} d WHERE d.id > $1::bigint ORDER BY d.id LIMIT $2::bigint";

/// A discarded dead letter may have been stored in Kafka after all.
const ACTS: &str = "
SELECT a.id, CASE WHEN a.act IN ('discard', 'replay', 'copy') THEN a.event_id END, a.act, a.topic
FROM {act} a
WHERE a.id > $1::bigint
ORDER BY a.id
LIMIT $2::bigint";

/// The positions of the columns that follow those of the claim's read.
mod column {
    pub(super) const IS_IN_RANGE: usize = 12;
    pub(super) const IS_READ: usize = 13;
    pub(super) const SENT_AT: usize = 14;
}

/// The history of one outbox.
pub struct PostgresHistory {
    reading: ShortTransaction,
    table: TableName,
    topics: TopicRules,
    payload: PayloadType,
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
        let rows = self.reading.query(DOING, &self.table.render(BOUNDS), &[]).await?;
        let Some(row) = rows.first() else { unreachable!("the statement returns a row") };
        let id = |column| row.get::<_, Option<i64>>(column).unwrap_or(0);
        Ok(Bounds { now: row.get(0), lowest: id(1), highest: id(2) })
    }

    /// The next rows after this id; empty at the end.
    pub async fn rows(&self, range: &HistoryRange, after: i64) -> Result<Vec<HistoryRow>, PostgresFault> {
        let mut params = range.selection.params();
        debug_assert_eq!(params.len(), SELECTION_PARAMS);
        params.extend::<[(&(dyn ToSql + Sync), Type); 5]>([
            (&after, Type::INT8),
            (&range.highest, Type::INT8),
            (&BATCH_BYTES, Type::INT8),
            (&range.record_bytes_max, Type::INT8),
            (&BATCH_ROWS, Type::INT8),
        ]);
        let (o_topic, p_topic) = match self.topics.column {
            true => (
                " left(o.{topic_column}, 300) AS row_topic,",
                ", CASE WHEN p.is_read THEN p.row_topic END AS outbox_relay_topic",
            ),
            false => ("", ""),
        };
        let sql = ROWS.replace("{length}", &self.payload.length_sql("o.{payload_column}"));
        let sql = sql.replace("{o_topic}", o_topic).replace("{p_topic}", p_topic);
        let sql = range.selection.render(&sql, &self.table, &self.topics);
        let rows = self.reading.query(DOING, &sql, &params).await?;
        rows.into_iter().map(|row| history_row(row).map_err(|error| fault(DOING, error))).collect()
    }

    /// The next records after this id; empty at the end.
    pub async fn other_ids(&self, kind: OtherIds, after: i64) -> Result<Vec<OtherId>, PostgresFault> {
        let (doing, sql) = match kind {
            OtherIds::DeadLetters => ("reading the dead letters", DEAD_LETTERS),
            OtherIds::Acts => ("reading the history", ACTS),
        };
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&after, Type::INT8), (&BATCH_IDS, Type::INT8)];
        let rows = self.reading.query(doing, &self.table.render(sql), &params).await?;
        Ok(rows.iter().map(other_id).collect())
    }
}

fn other_id(row: &Row) -> OtherId {
    let what = match (row.get::<_, Option<&str>>(2), row.get::<_, Option<String>>(3)) {
        (Some("replay"), _) => Recorded::Replay,
        (Some("copy"), Some(topic)) => Recorded::Copy(topic),
        _ => Recorded::DeadLetter,
    };
    OtherId { id: row.get(0), event_id: row.get(1), what }
}

fn history_row(row: Row) -> Result<HistoryRow, Error> {
    let (is_in_range, is_read) = (row.try_get(column::IS_IN_RANGE)?, row.try_get(column::IS_READ)?);
    let sent_at = row.try_get(column::SENT_AT)?;
    Ok(HistoryRow { event: OutboxRow::new(row)?, is_in_range, is_read, sent_at })
}

impl HistoryRow {
    pub fn id(&self) -> i64 {
        self.event.id()
    }
}
