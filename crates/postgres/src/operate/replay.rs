//! Publishes sent events again: sets `sent_at` back to NULL, so that relays publish the rows in order.
//!
//! The rows are below the low-water marks of the relays. The statement therefore fires the trigger that counts ended holds.
//! The marks become invalid in the same snapshot in which the rows become visible, and every claim reads the rows of a key in
//! order. Every time, the relays read their lanes from the first row again, so only batches with selected rows run it.

use crate::connection::connect::Database;
use crate::connection::transaction::{Params, ShortTransaction};
use crate::operate::sent::{SELECTION_PARAMS, SentSelection};
use crate::table::TableName;
use relay::failure::PostgresFault;
use relay::topic::TopicRules;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// The next rows by id, and those of them that are selected.
const PICKED: &str = "
scanned AS MATERIALIZED (
    SELECT o.{id_column} AS id, {topic} AS topic, {fits} AS is_selected
    FROM {outbox} o
    WHERE o.{id_column} > $8::bigint AND o.{id_column} <= $9::bigint
    ORDER BY o.{id_column}
    LIMIT $10::bigint
), picked AS MATERIALIZED (
    SELECT s.id, s.topic FROM scanned s WHERE s.is_selected ORDER BY s.id LIMIT $11::bigint
), reached AS (
    SELECT CASE WHEN (SELECT count(*) FROM picked) < $11::bigint THEN (SELECT max(id) FROM scanned)
                ELSE (SELECT max(id) FROM picked) END AS id
)";

const COUNT: &str = "
WITH {picked}
SELECT topic, count(*), NULL::bigint FROM picked GROUP BY topic
UNION ALL
SELECT NULL, 0, id FROM reached";

const PICK: &str = "
WITH {picked}
SELECT ARRAY(SELECT id FROM picked ORDER BY id), id FROM reached";

/// The UPDATE checks the selection again under the row's lock: the reaper may have deleted the row. Statement triggers fire
/// for a DELETE of no rows too.
const REPLAY: &str = "
WITH replayed AS (
    UPDATE {outbox} o SET {sent_at_column} = NULL
    WHERE o.{id_column} = ANY ($8::bigint[]) AND {fits}
    RETURNING o.{id_column} AS id, o.{event_id_column} AS event_id, o.{aggregate_type_column} AS aggregate_type,
              {topic} AS topic
), recorded AS MATERIALIZED (
    SELECT {record_act}('replay', array_agg(id::bigint ORDER BY id), array_agg(event_id ORDER BY id),
                        array_agg(aggregate_type::text ORDER BY id), array_agg(topic::text ORDER BY id), $9::text)
    FROM replayed
), marks_invalidated AS (
    DELETE FROM {hold} WHERE false
)
SELECT topic, count(*) FROM replayed CROSS JOIN recorded GROUP BY topic";

/// Records that rows were published to another topic.
const RECORD_COPIES: &str = "SELECT {record_act}('copy', $1::bigint[], $2::uuid[], $3::text[], array_fill($4::text, ARRAY[cardinality($1)]), $5::text)";

/// Rows per statement when few of them are selected.
const SCANNED_ROWS: i64 = 10_000;

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
    pub event_id: uuid::Uuid,
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
        for row in self.read(COUNT, selection, batch).await? {
            match row.get::<_, Option<String>>(0) {
                Some(topic) => counted.topics.push((topic, row.get::<_, i64>(1).unsigned_abs())),
                None => counted.reached = row.get(2),
            }
        }
        Ok(counted)
    }

    /// Finds the selected rows of a batch.
    pub async fn pick(&self, selection: &SentSelection, batch: ReplayBatch) -> Result<Picked, PostgresFault> {
        let rows = self.read(PICK, selection, batch).await?;
        Ok(rows.first().map_or_else(Picked::default, |row| Picked { ids: row.get(0), reached: row.get(1) }))
    }

    async fn read(
        &self,
        sql: &str,
        selection: &SentSelection,
        batch: ReplayBatch,
    ) -> Result<Vec<Row>, PostgresFault> {
        let ReplayBatch { after, up_to, rows } = batch;
        let mut params = selection.params();
        debug_assert_eq!(params.len(), SELECTION_PARAMS);
        params.extend::<[(&(dyn ToSql + Sync), Type); 4]>([
            (&after, Type::INT8),
            (&up_to, Type::INT8),
            (&SCANNED_ROWS, Type::INT8),
            (&rows, Type::INT8),
        ]);
        let sql = self.render(&sql.replace("{picked}", PICKED), selection);
        self.reading.query("reading sent events", &sql, &params).await
    }

    /// Sets these rows back to unsent if they are still selected, and records each. Returns the number of events of each
    /// topic. If the future is dropped, the outcome is unknown.
    pub async fn replay(
        &self,
        selection: &SentSelection,
        ids: &[i64],
        reason: &str,
    ) -> Result<Vec<(String, u64)>, PostgresFault> {
        let mut params = selection.params();
        params.extend::<[(&(dyn ToSql + Sync), Type); 2]>([(&ids, Type::INT8_ARRAY), (&reason, Type::TEXT)]);
        let sql = self.render(REPLAY, selection);
        let rows = self.operating.query("replaying events", &sql, &params).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).unsigned_abs())).collect())
    }

    fn render(&self, sql: &str, selection: &SentSelection) -> String {
        selection.render(sql, &self.table, &self.topics)
    }

    /// Records that these events were published to another topic.
    pub async fn record_copies(
        &self,
        copied: &[Copied],
        topic: &str,
        reason: &str,
    ) -> Result<(), PostgresFault> {
        let ids: Vec<i64> = copied.iter().map(|event| event.id).collect();
        let event_ids: Vec<uuid::Uuid> = copied.iter().map(|event| event.event_id).collect();
        let types: Vec<&str> = copied.iter().map(|event| event.aggregate_type.as_str()).collect();
        let params: Params<'_> = &[
            (&ids, Type::INT8_ARRAY),
            (&event_ids, Type::UUID_ARRAY),
            (&types, Type::TEXT_ARRAY),
            (&topic, Type::TEXT),
            (&reason, Type::TEXT),
        ];
        self.operating.query("recording a replay", &self.table.render(RECORD_COPIES), params).await.map(drop)
    }
}
