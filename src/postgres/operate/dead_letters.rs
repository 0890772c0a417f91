//! Lists, shows, requeues and discards dead letters.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::transaction::ShortTransaction;
use crate::postgres::operate::acts::{BatchResult, batch_result};
use crate::postgres::operate::selection::{Batch, SELECTION_PARAMS, Selection, conditions};
use crate::postgres::payload::PayloadType;
use crate::postgres::schema::check::Facts;
use crate::postgres::table::TableName;
use crate::relay::failure::Fault;
use std::time::SystemTime;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

const LIST: &str = "
SELECT s.id, s.outbox_id, s.event_id, s.aggregate_type, s.aggregate_id, s.event_type, s.topic, s.reason, s.error,
       s.rejected_at, s.requeued_at, octet_length(s.payload)
FROM {dead_letter} s
WHERE {fits} AND s.id {within} $9::bigint
ORDER BY s.id {direction}
LIMIT $10::bigint";

/// The time is returned as text, because a writer can store an infinite one.
const WHOLE: &str = "
SELECT s.id, s.outbox_id, s.event_id, s.aggregate_type, s.aggregate_id, s.event_type, s.topic, s.reason, s.error,
       s.rejected_at, s.requeued_at, octet_length(s.payload), s.payload, s.headers::text,
       CASE WHEN isfinite(s.created_at)
            THEN to_char(s.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')
            ELSE s.created_at::text END
FROM {dead_letter} s
WHERE s.id = $1::bigint";

const COUNT: &str = "
SELECT count(*) FROM (SELECT FROM {dead_letter} s WHERE {fits} AND s.id <= $9::bigint LIMIT $10::bigint) AS fitting";

/// Dead letters of events that name their topic.
const NAMING: &str = "
SELECT count(*) FROM {dead_letter} s WHERE {fits} AND s.id <= $9::bigint AND s.row_topic IS NOT NULL";

const NEWEST: &str = "SELECT coalesce(max(id), 0) FROM {dead_letter}";

/// The oldest matching dead letters after the previous batch. The upper limit is the highest id when the command began, so
/// that an event that is rejected again is not requeued repeatedly.
const PICKED: &str = "
picked AS MATERIALIZED (
    SELECT s.id
    FROM {dead_letter} s
    WHERE {fits} AND s.id > $9::bigint AND s.id <= $10::bigint
    ORDER BY s.id
    LIMIT $11::bigint
)";

/// The UPDATE checks the filter again under the row's lock, so that two operators do not requeue a dead letter twice. The
/// event keeps its values, including `created_at`. Its new row has a new id, after the other rows of its key.
const REQUEUE: &str = "
WITH {picked}, requeued AS (
    UPDATE {dead_letter} s SET requeued_at = now()
    WHERE s.id = ANY (ARRAY(SELECT id FROM picked)) AND {fits}
    RETURNING s.*
), inserted AS (
    INSERT INTO {outbox} ({event_id_column}, {aggregate_type_column}, {aggregate_id_column}, {event_type_column},
                          {payload_column}, {headers_column}, {created_at_column}{topic})
    SELECT event_id, aggregate_type, aggregate_id, event_type, {payload_from_bytes}, headers, created_at{row_topic}
    FROM requeued
    ORDER BY id
)
SELECT (SELECT count(*) FROM requeued), 0::bigint, (SELECT max(id) FROM picked)";

const DISCARD: &str = "
WITH {picked}, discarded AS (
    DELETE FROM {dead_letter} s
    WHERE s.id = ANY (ARRAY(SELECT id FROM picked)) AND {fits}
    RETURNING s.id
)
SELECT (SELECT count(*) FROM discarded), 0::bigint, (SELECT max(id) FROM picked)";

/// A dead letter, without its payload and headers.
#[derive(Clone, Debug)]
pub(crate) struct DeadLetter {
    /// Identifies it in commands.
    pub id: i64,
    /// The id of the rejected row.
    pub outbox_id: i64,
    pub event_id: Uuid,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub event_type: String,
    pub topic: String,
    /// A keyword to filter by.
    pub reason: String,
    /// The full error message.
    pub error: String,
    pub rejected_at: SystemTime,
    /// When it was last requeued.
    pub requeued_at: Option<SystemTime>,
    /// The length of the payload; `None` for a tombstone.
    pub payload_bytes: Option<i32>,
}

/// A dead letter with its payload and headers.
#[derive(Clone, Debug)]
pub(crate) struct WholeDeadLetter {
    pub letter: DeadLetter,
    pub payload: Option<Vec<u8>>,
    /// As JSON.
    pub headers: Option<String>,
    /// RFC 3339 with microseconds, or an infinity.
    pub created_at: String,
}

/// Selects dead letters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub selection: Selection,
    /// Only those that were, or were not, requeued.
    pub requeued: Option<bool>,
}

impl Filter {
    fn params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let mut params = self.selection.params();
        debug_assert_eq!(params.len(), SELECTION_PARAMS);
        params.push((&self.requeued, Type::BOOL));
        params
    }
}

/// The dead letters of one outbox.
pub(crate) struct PostgresDeadLetters {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    payload: PayloadType,
    has_topic: bool,
}

impl PostgresDeadLetters {
    /// For this outbox. Connects on first use.
    pub(crate) fn new(database: Database, table: TableName, facts: &Facts) -> PostgresDeadLetters {
        let (reading, operating) =
            (ShortTransaction::reading(database.clone()), ShortTransaction::operating(database));
        let Facts { payload, has_topic, .. } = *facts;
        PostgresDeadLetters { reading, operating, table, payload, has_topic }
    }

    /// The newest dead letters with an id below `before`, at most `rows`.
    pub(crate) async fn newest(
        &self,
        filter: &Filter,
        before: i64,
        rows: i64,
    ) -> Result<Vec<DeadLetter>, Fault> {
        self.list(filter, &LIST.replace("{within}", "<").replace("{direction}", "DESC"), before, rows).await
    }

    /// The oldest dead letters with an id up to `up_to`, at most `rows`.
    pub(crate) async fn oldest(
        &self,
        filter: &Filter,
        up_to: i64,
        rows: i64,
    ) -> Result<Vec<DeadLetter>, Fault> {
        self.list(filter, &LIST.replace("{within}", "<=").replace("{direction}", "ASC"), up_to, rows).await
    }

    async fn list(&self, filter: &Filter, sql: &str, id: i64, rows: i64) -> Result<Vec<DeadLetter>, Fault> {
        let mut params = filter.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&id, Type::INT8), (&rows, Type::INT8)]);
        let rows = self.reading.query("reading the dead letters", &self.render(sql), &params).await?;
        Ok(rows.iter().map(dead_letter).collect())
    }

    /// A dead letter with its payload and headers.
    pub(crate) async fn whole(&self, id: i64) -> Result<Option<WholeDeadLetter>, Fault> {
        let sql = self.render(WHOLE);
        let rows = self.reading.query("reading a dead letter", &sql, &[(&id, Type::INT8)]).await?;
        Ok(rows.first().map(|row| WholeDeadLetter {
            letter: dead_letter(row),
            payload: row.get(12),
            headers: row.get(13),
            created_at: row.get(14),
        }))
    }

    /// The highest id; 0 if there is none.
    pub(crate) async fn highest_id(&self) -> Result<i64, Fault> {
        let rows = self.reading.query("reading the dead letters", &self.render(NEWEST), &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    /// Counts the dead letters with an id up to `up_to`, at most `most`.
    pub(crate) async fn count(&self, filter: &Filter, up_to: i64, most: i64) -> Result<u64, Fault> {
        let mut params = filter.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&up_to, Type::INT8), (&most, Type::INT8)]);
        let rows = self.reading.query("counting the dead letters", &self.render(COUNT), &params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    /// Counts the dead letters with an id up to `up_to` whose topic would be lost by a requeue, because the outbox no longer has
    /// the column `topic`.
    pub(crate) async fn losing_their_topic(&self, filter: &Filter, up_to: i64) -> Result<u64, Fault> {
        if self.has_topic {
            return Ok(0);
        }
        let mut params = filter.params();
        params.push((&up_to, Type::INT8));
        let rows = self.reading.query("counting the dead letters", &self.render(NAMING), &params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    /// Inserts a batch of dead letters into the outbox again. Returns `None` if nothing was left. If the future is dropped,
    /// the outcome is unknown.
    pub(crate) async fn requeue(&self, filter: &Filter, batch: Batch) -> Result<Option<BatchResult>, Fault> {
        self.act("requeueing dead letters", REQUEUE, filter, batch).await
    }

    /// Deletes a batch of dead letters.
    pub(crate) async fn discard(&self, filter: &Filter, batch: Batch) -> Result<Option<BatchResult>, Fault> {
        self.act("discarding dead letters", DISCARD, filter, batch).await
    }

    async fn act(
        &self,
        doing: &'static str,
        sql: &str,
        filter: &Filter,
        batch: Batch,
    ) -> Result<Option<BatchResult>, Fault> {
        let mut params = filter.params();
        params.extend(batch.params());
        Ok(batch_result(&self.operating.query(doing, &self.render(sql), &params).await?))
    }

    fn render(&self, sql: &str) -> String {
        let fits = format!(
            "{}\n      AND ($8::boolean IS NULL OR (s.requeued_at IS NOT NULL) = $8)",
            conditions("id", "rejected_at")
        );
        let sql = sql
            .replace("{picked}", PICKED)
            .replace("{fits}", &fits)
            .replace("{payload_from_bytes}", &self.payload.decode_sql("payload"))
            .replace("{topic}", if self.has_topic { ", {topic_column}" } else { "" })
            .replace("{row_topic}", if self.has_topic { ", row_topic" } else { "" });
        self.table.render(&sql)
    }
}

fn dead_letter(row: &Row) -> DeadLetter {
    DeadLetter {
        id: row.get(0),
        outbox_id: row.get(1),
        event_id: row.get(2),
        aggregate_type: row.get(3),
        aggregate_id: row.get(4),
        event_type: row.get(5),
        topic: row.get(6),
        reason: row.get(7),
        error: row.get(8),
        rejected_at: row.get(9),
        requeued_at: row.get(10),
        payload_bytes: row.get(11),
    }
}
