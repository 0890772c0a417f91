//! Lists blocked keys, retries their events, and moves the events to the dead letters.

use crate::connection::connect::Database;
use crate::connection::transaction::ShortTransaction;
use crate::operate::acts::{BatchResult, batch_result};
use crate::operate::selection::{Batch, Selection, conditions};
use crate::payload::PayloadType;
use crate::schema::check::Facts;
use crate::table::TableName;
use relay::failure::PostgresFault;
use std::time::SystemTime;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// The blocking event is in the outbox and unsent. An operator may have marked or deleted it manually. After a failover,
/// another event can have its id.
const UNSENT: &str = "EXISTS (
    SELECT FROM {rows} o WHERE o.id = s.outbox_id AND o.event_id = s.event_id AND o.sent_at IS NULL)";

const LIST: &str = "
SELECT s.outbox_id, s.event_id, s.aggregate_type, s.aggregate_id, s.topic, s.reason, s.error, s.blocked_at, {unsent}
FROM {blocked_key} s
WHERE {fits} AND s.outbox_id {within} $8::bigint
ORDER BY s.outbox_id {direction}
LIMIT $9::bigint";

const COUNT: &str = "
SELECT count(*) FILTER (WHERE unsent), count(*) FILTER (WHERE NOT unsent), max(outbox_id)
FROM (
    SELECT s.outbox_id, {unsent} AS unsent
    FROM {blocked_key} s
    WHERE {fits} AND s.outbox_id <= $8::bigint
    ORDER BY s.outbox_id
    LIMIT $9::bigint
) AS fitting";

const NEWEST: &str = "SELECT coalesce(max(outbox_id), 0) FROM {blocked_key}";

/// Deletes the oldest matching blocks. The trigger raises the version of the holds, so relays read the rows again, in order.
const LIFTED: &str = "
picked AS MATERIALIZED (
    SELECT s.outbox_id
    FROM {blocked_key} s
    WHERE {fits} AND s.outbox_id > $8::bigint AND s.outbox_id <= $9::bigint
    ORDER BY s.outbox_id
    LIMIT $10::bigint
), lifted AS (
    DELETE FROM {blocked_key} s
    WHERE s.outbox_id = ANY (ARRAY(SELECT outbox_id FROM picked)) AND {fits}
    RETURNING s.*, {unsent} AS unsent
)";

const RETRY: &str = "
WITH {lifted}
SELECT (SELECT count(*) FROM lifted WHERE unsent), (SELECT count(*) FROM lifted WHERE NOT unsent),
       (SELECT max(outbox_id) FROM picked)";

/// The result depends on the DELETE, not on `unsent`: another session may mark the event after the snapshot.
const DEAD_LETTER: &str = "
WITH {lifted}, moved AS (
    DELETE FROM {outbox} o
    USING lifted l
    WHERE o.{id_column} = l.outbox_id AND o.{event_id_column} = l.event_id AND o.{sent_at_column} IS NULL
      AND o.{id_column} = ANY (ARRAY(SELECT outbox_id FROM lifted))
    RETURNING {whole_event},
              l.topic, l.reason, l.error{o_topic}
), dead AS (
    INSERT INTO {dead_letter} (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                               created_at, topic, reason, error{row_topic})
    SELECT id, event_id, aggregate_type, aggregate_id, event_type, {payload_bytes}, headers, created_at, topic, reason,
           error{row_topic}
    FROM moved
    ORDER BY id
    RETURNING id
)
SELECT (SELECT count(*) FROM dead), (SELECT count(*) FROM lifted) - (SELECT count(*) FROM dead),
       (SELECT max(outbox_id) FROM picked)";

/// A key whose events wait.
#[derive(Clone, Debug)]
pub struct BlockedKey {
    /// The id of the rejected row, which identifies the block in commands.
    pub outbox_id: i64,
    pub event_id: Uuid,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub topic: String,
    /// A keyword to filter by.
    pub reason: String,
    /// The full error message.
    pub error: String,
    pub blocked_at: SystemTime,
    /// Whether the event is still in the outbox and unsent. If not, an operator has marked or deleted it manually.
    pub unsent: bool,
}

/// The blocked keys of one outbox.
pub struct PostgresBlockedKeys {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    payload: PayloadType,
    has_topic: bool,
}

impl PostgresBlockedKeys {
    /// For this outbox. Connects on first use.
    pub fn new(database: Database, table: TableName, facts: &Facts) -> PostgresBlockedKeys {
        let (reading, operating) =
            (ShortTransaction::reading(database.clone()), ShortTransaction::operating(database));
        let Facts { payload, has_topic, .. } = *facts;
        PostgresBlockedKeys { reading, operating, table, payload, has_topic }
    }

    /// The newest blocks with an id below `before`, at most `rows`.
    pub async fn newest(
        &self,
        selection: &Selection,
        before: i64,
        rows: i64,
    ) -> Result<Vec<BlockedKey>, PostgresFault> {
        let sql = LIST.replace("{within}", "<").replace("{direction}", "DESC");
        self.list(selection, &sql, before, rows).await
    }

    /// The oldest blocks with an id up to `up_to`, at most `rows`.
    pub async fn oldest(
        &self,
        selection: &Selection,
        up_to: i64,
        rows: i64,
    ) -> Result<Vec<BlockedKey>, PostgresFault> {
        let sql = LIST.replace("{within}", "<=").replace("{direction}", "ASC");
        self.list(selection, &sql, up_to, rows).await
    }

    async fn list(
        &self,
        selection: &Selection,
        sql: &str,
        id: i64,
        rows: i64,
    ) -> Result<Vec<BlockedKey>, PostgresFault> {
        let mut params = selection.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&id, Type::INT8), (&rows, Type::INT8)]);
        let rows = self.reading.query("reading the blocked keys", &self.render(sql), &params).await?;
        Ok(rows.iter().map(blocked_key).collect())
    }

    /// The highest id; 0 if there is none.
    pub async fn highest_id(&self) -> Result<i64, PostgresFault> {
        let rows = self.reading.query("reading the blocked keys", &self.render(NEWEST), &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    /// Counts the blocks with an id up to `up_to`, at most `most`. Those without an event are in [`BatchResult::lifted`].
    pub async fn count(
        &self,
        selection: &Selection,
        up_to: i64,
        most: i64,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        let mut params = selection.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&up_to, Type::INT8), (&most, Type::INT8)]);
        Ok(batch_result(
            &self.reading.query("counting the blocked keys", &self.render(COUNT), &params).await?,
        ))
    }

    /// Lifts a batch of blocks, so that relays retry their events. Returns `None` if nothing was left. If the future is
    /// dropped, the outcome is unknown.
    pub async fn retry(
        &self,
        selection: &Selection,
        batch: Batch,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        self.act("unblocking keys", RETRY, selection, batch).await
    }

    /// Moves the rejected events of a batch of blocks to the dead letters, and lifts the blocks.
    pub async fn dead_letter(
        &self,
        selection: &Selection,
        batch: Batch,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        self.act("moving events to the dead letters", DEAD_LETTER, selection, batch).await
    }

    async fn act(
        &self,
        doing: &'static str,
        sql: &str,
        selection: &Selection,
        batch: Batch,
    ) -> Result<Option<BatchResult>, PostgresFault> {
        let mut params = selection.params();
        params.extend(batch.params());
        Ok(batch_result(&self.operating.query(doing, &self.render(sql), &params).await?))
    }

    fn render(&self, sql: &str) -> String {
        let sql = sql
            .replace("{lifted}", LIFTED)
            .replace("{fits}", &conditions("outbox_id", "blocked_at"))
            .replace("{unsent}", UNSENT)
            .replace("{payload_bytes}", &self.payload.bytes_sql("payload"))
            .replace("{o_topic}", if self.has_topic { ", o.{topic_column} AS row_topic" } else { "" })
            .replace("{row_topic}", if self.has_topic { ", row_topic" } else { "" });
        self.table.render(&sql)
    }
}

fn blocked_key(row: &Row) -> BlockedKey {
    BlockedKey {
        outbox_id: row.get(0),
        event_id: row.get(1),
        aggregate_type: row.get(2),
        aggregate_id: row.get(3),
        topic: row.get(4),
        reason: row.get(5),
        error: row.get(6),
        blocked_at: row.get(7),
        unsent: row.get(8),
    }
}
