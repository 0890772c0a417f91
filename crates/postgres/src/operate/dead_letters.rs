//! Lists, shows, requeues and discards dead letters.

use crate::connection::connect::Database;
use crate::connection::transaction::ShortTransaction;
use crate::cycle::statements::topic_sql;
use crate::operate::acts::{BatchResult, batch_result};
use crate::operate::header_changes::HeaderChanges;
use crate::operate::selection::{Batch, SELECTION_PARAMS, Selection, conditions};
use crate::payload::PayloadType;
use crate::table::TableName;
use pg_outbox::topic::check_topic;
use relay::failure::PostgresFault;
use relay::topic::TopicRules;
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

/// The selected dead letters whose events would be rejected again, by the topic that they would have now.
const REJECTED_AGAIN: &str = "
SELECT left({topic_of_event}, 300), {is_named}, count(*), count(*) FILTER (WHERE o.has_bad_headers),
       count(*) FILTER (WHERE o.bytes > {record_bytes_max})
FROM (
    SELECT c.aggregate_type, c.event_type, c.row_topic AS topic,
           coalesce(octet_length(c.payload), 0)::bigint + octet_length(c.aggregate_id) + octet_length(c.event_type) AS bytes,
           CASE jsonb_typeof(c.changed) WHEN 'null' THEN false
                                        WHEN 'object' THEN c.changed @? '$.* ? (@.type() <> \"string\")' OR c.changed ?| {reserved}
                                        ELSE c.changed IS NOT NULL END AS has_bad_headers
    FROM (
        SELECT s.*, {changed_headers} AS changed
        FROM (SELECT s.* FROM {dead_letter} s WHERE {fits} AND s.id <= $9::bigint ORDER BY s.id LIMIT $10::bigint) AS s
    ) AS c
) AS o
GROUP BY 1, 2
ORDER BY 3 DESC
LIMIT 1000";

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
/// event keeps its values, including `created_at`, except for headers that the operator corrects. Its new row has a new id,
/// after the other rows of its key.
const REQUEUE: &str = "
WITH {picked}, {noted}requeued AS (
    UPDATE {dead_letter} s SET requeued_at = now()
    WHERE s.id = ANY (ARRAY(SELECT id FROM picked)) AND {fits}{is_noted}
    RETURNING s.*
), inserted AS (
    INSERT INTO {outbox} ({event_id_column}, {aggregate_type_column}, {aggregate_id_column}, {event_type_column},
                          {payload_column}, {headers_column}, {created_at_column}{topic})
    SELECT event_id, aggregate_type, aggregate_id, event_type, {payload_from_bytes}, {changed_headers}, created_at{row_topic}
    FROM requeued
    ORDER BY id
)
SELECT (SELECT count(*) FROM requeued), 0::bigint, (SELECT max(id) FROM picked)";

/// Notes in the history that headers were corrected. The trigger records the name of the application.
const NOTED: &str = "
noted AS MATERIALIZED (
    SELECT set_config('application_name', left(current_setting('application_name') || ', headers corrected', 63), true)
), ";

const DISCARD: &str = "
WITH {picked}, discarded AS (
    DELETE FROM {dead_letter} s
    WHERE s.id = ANY (ARRAY(SELECT id FROM picked)) AND {fits}
    RETURNING s.id
)
SELECT (SELECT count(*) FROM discarded), 0::bigint, (SELECT max(id) FROM picked)";

/// A dead letter, without its payload and headers.
#[derive(Clone, Debug)]
pub struct DeadLetter {
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
pub struct WholeDeadLetter {
    pub letter: DeadLetter,
    pub payload: Option<Vec<u8>>,
    /// As JSON.
    pub headers: Option<String>,
    /// RFC 3339 with microseconds, or an infinity.
    pub created_at: String,
}

/// Selects dead letters.
#[derive(Clone, Debug, Default)]
pub struct Filter {
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

/// How many of the selected dead letters would be rejected again, by the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectedAgain {
    pub headers: u64,
    pub too_large: u64,
    /// Their topic has an invalid name, or is not allowed.
    pub topic: u64,
}

/// The dead letters of one outbox.
pub struct PostgresDeadLetters {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    payload: PayloadType,
    topics: TopicRules,
}

impl PostgresDeadLetters {
    /// For this outbox. Connects on first use.
    pub fn new(
        database: Database,
        table: TableName,
        payload: PayloadType,
        topics: TopicRules,
    ) -> PostgresDeadLetters {
        let (reading, operating) =
            (ShortTransaction::reading(database.clone()), ShortTransaction::operating(database));
        PostgresDeadLetters { reading, operating, table, payload, topics }
    }

    /// The newest dead letters with an id below `before`, at most `rows`.
    pub async fn newest(
        &self,
        filter: &Filter,
        before: i64,
        rows: i64,
    ) -> Result<Vec<DeadLetter>, PostgresFault> {
        self.list(filter, &LIST.replace("{within}", "<").replace("{direction}", "DESC"), before, rows).await
    }

    /// The oldest dead letters with an id up to `up_to`, at most `rows`.
    pub async fn oldest(
        &self,
        filter: &Filter,
        up_to: i64,
        rows: i64,
    ) -> Result<Vec<DeadLetter>, PostgresFault> {
        self.list(filter, &LIST.replace("{within}", "<=").replace("{direction}", "ASC"), up_to, rows).await
    }

    async fn list(
        &self,
        filter: &Filter,
        sql: &str,
        id: i64,
        rows: i64,
    ) -> Result<Vec<DeadLetter>, PostgresFault> {
        let mut params = filter.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&id, Type::INT8), (&rows, Type::INT8)]);
        let rows = self.reading.query("reading the dead letters", &self.render(sql), &params).await?;
        Ok(rows.iter().map(dead_letter).collect())
    }

    /// A dead letter with its payload and headers.
    pub async fn whole(&self, id: i64) -> Result<Option<WholeDeadLetter>, PostgresFault> {
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
    pub async fn highest_id(&self) -> Result<i64, PostgresFault> {
        let rows = self.reading.query("reading the dead letters", &self.render(NEWEST), &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    /// Counts the dead letters with an id up to `up_to`, at most `most`.
    pub async fn count(&self, filter: &Filter, up_to: i64, most: i64) -> Result<u64, PostgresFault> {
        let mut params = filter.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&up_to, Type::INT8), (&most, Type::INT8)]);
        let rows = self.reading.query("counting the dead letters", &self.render(COUNT), &params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    /// Counts the dead letters with an id up to `up_to` whose topic would be lost by a requeue, because the outbox no longer has
    /// the column `topic`.
    pub async fn losing_their_topic(&self, filter: &Filter, up_to: i64) -> Result<u64, PostgresFault> {
        if self.topics.column {
            return Ok(0);
        }
        let mut params = filter.params();
        params.push((&up_to, Type::INT8));
        let rows = self.reading.query("counting the dead letters", &self.render(NAMING), &params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    /// Counts the dead letters, among the oldest `most` with an id up to `up_to`, whose events would be rejected again with
    /// these changes, reserved names of headers, and largest record.
    pub async fn rejected_again(
        &self,
        filter: &Filter,
        (up_to, most): (i64, i64),
        changes: &HeaderChanges,
        reserved: &[&str],
        record_bytes_max: usize,
    ) -> Result<RejectedAgain, PostgresFault> {
        let mut params = filter.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&up_to, Type::INT8), (&most, Type::INT8)]);
        let changed = changes.sql(&mut params);
        params.push((&reserved, Type::TEXT_ARRAY));
        let sql = REJECTED_AGAIN
            .replace("{topic_of_event}", &topic_sql(&self.table, &self.topics))
            .replace("{is_named}", if self.topics.column { "o.topic IS NOT NULL" } else { "false" })
            .replace("{record_bytes_max}", &record_bytes_max.to_string())
            .replace("{reserved}", &format!("${}::text[]", params.len()))
            .replace("{changed_headers}", &changed);
        let rows = self.reading.query("checking the dead letters", &self.render(&sql), &params).await?;
        let mut again = RejectedAgain::default();
        for row in &rows {
            let (topic, is_named): (String, bool) = (row.get(0), row.get(1));
            let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
            again.headers += count(3);
            again.too_large += count(4);
            if check_topic(&topic).is_err() || is_named && !self.topics.allows(&topic) {
                again.topic += count(2);
            }
        }
        Ok(again)
    }

    /// Inserts a batch of dead letters into the outbox again, with these changes of their headers. Returns `None` if nothing was
    /// left. If the future is dropped, the outcome is unknown.
    pub async fn requeue(
        &self,
        filter: &Filter,
        batch: Batch,
        changes: &HeaderChanges,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        let mut params = filter.params();
        params.extend(batch.params());
        let (noted, is_noted, headers) = if changes.is_none() {
            ("", "", "headers".to_owned())
        } else {
            (NOTED, " AND EXISTS (SELECT FROM noted)", changes.sql(&mut params))
        };
        let sql = REQUEUE.replace("{noted}", noted).replace("{is_noted}", is_noted);
        let sql = self.render(&sql.replace("{changed_headers}", &headers));
        Ok(batch_result(&self.operating.query("requeueing dead letters", &sql, &params).await?))
    }

    /// Deletes a batch of dead letters.
    pub async fn discard(&self, filter: &Filter, batch: Batch) -> Result<Option<BatchResult>, PostgresFault> {
        let mut params = filter.params();
        params.extend(batch.params());
        let rows = self.operating.query("discarding dead letters", &self.render(DISCARD), &params).await?;
        Ok(batch_result(&rows))
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
            .replace("{topic}", if self.topics.column { ", {topic_column}" } else { "" })
            .replace("{row_topic}", if self.topics.column { ", row_topic" } else { "" });
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
