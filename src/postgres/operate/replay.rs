//! Publishes sent events again: sets `sent_at` back to NULL, so that relays publish the rows in order.
//!
//! The rows are below the low-water marks of the relays. The statement therefore fires the trigger that counts ended holds.
//! The marks become invalid in the same snapshot in which the rows become visible, and every claim reads the rows of a key in
//! order.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::transaction::{Params, ShortTransaction};
use crate::postgres::operate::sent::{SELECTION_PARAMS, SentSelection};
use crate::postgres::table::TableName;
use crate::relay::failure::Fault;
use crate::relay::topic::TopicRules;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The next rows by id, and those of them that are selected.
const PICKED: &str = "
scanned AS MATERIALIZED (
    SELECT o.id, {topic} AS topic, {fits} AS is_selected
    FROM {outbox} o
    WHERE o.id > $8::bigint AND o.id <= $9::bigint
    ORDER BY o.id
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

/// The UPDATE checks the selection again under the row's lock: the reaper may have deleted the row. Statement triggers fire
/// for a DELETE of no rows too.
const REPLAY: &str = "
WITH {picked}, replayed AS (
    UPDATE {outbox} o SET sent_at = NULL
    WHERE o.id = ANY (ARRAY(SELECT id FROM picked)) AND {fits}
    RETURNING o.id, o.event_id, o.aggregate_type, {topic} AS topic
), recorded AS (
    INSERT INTO {act} (act, outbox_id, event_id, aggregate_type, topic, reason)
    SELECT 'replay', id, event_id, aggregate_type, topic, $12::text FROM replayed ORDER BY id
), marks_invalidated AS (
    DELETE FROM {hold} WHERE false
)
SELECT topic, count(*), NULL::bigint FROM replayed GROUP BY topic
UNION ALL
SELECT NULL, 0, id FROM reached";

/// Records that rows were published to another topic.
const RECORD_COPIES: &str = "
INSERT INTO {act} (act, outbox_id, event_id, aggregate_type, topic, reason)
SELECT 'copy', c.id, c.event_id, c.aggregate_type, $4::text, $5::text
FROM unnest($1::bigint[], $2::uuid[], $3::text[]) AS c(id, event_id, aggregate_type)
ORDER BY c.id";

/// Rows per statement when few of them are selected.
const SCANNED_ROWS: i64 = 10_000;

/// One transaction: rows with an id above `after` and up to `up_to`, at most `rows` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplayBatch {
    pub after: i64,
    pub up_to: i64,
    pub rows: i64,
}

/// The result of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// The number of events of each topic.
    pub topics: Vec<(String, u64)>,
    /// Where the next batch continues; `None` if no rows are left.
    pub reached: Option<i64>,
}

/// An event that was published to another topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub id: i64,
    pub event_id: uuid::Uuid,
    pub aggregate_type: String,
}

/// Replays of one outbox.
pub(crate) struct PostgresReplay {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
    topics: TopicRules,
}

impl PostgresReplay {
    /// For this outbox. Connects on first use.
    pub(crate) fn new(database: Database, table: TableName, topics: TopicRules) -> PostgresReplay {
        let reading = ShortTransaction::reading(database.clone());
        PostgresReplay { reading, operating: ShortTransaction::operating(database), table, topics }
    }

    /// Counts the selected rows of a batch.
    pub(crate) async fn count(
        &self,
        selection: &SentSelection,
        batch: ReplayBatch,
    ) -> Result<Replayed, Fault> {
        self.run(&self.reading, "counting sent events", COUNT, selection, batch, None).await
    }

    /// Sets the selected rows of a batch back to unsent, and records each. If the future is dropped, the outcome is unknown.
    pub(crate) async fn replay(
        &self,
        selection: &SentSelection,
        batch: ReplayBatch,
        reason: &str,
    ) -> Result<Replayed, Fault> {
        self.run(&self.operating, "replaying events", REPLAY, selection, batch, Some(reason)).await
    }

    async fn run(
        &self,
        transaction: &ShortTransaction,
        doing: &'static str,
        sql: &str,
        selection: &SentSelection,
        batch: ReplayBatch,
        reason: Option<&str>,
    ) -> Result<Replayed, Fault> {
        let ReplayBatch { after, up_to, rows } = batch;
        let scanned = SCANNED_ROWS;
        let mut params = selection.params();
        debug_assert_eq!(params.len(), SELECTION_PARAMS);
        params.push((&after, Type::INT8));
        params.push((&up_to, Type::INT8));
        params.push((&scanned, Type::INT8));
        params.push((&rows, Type::INT8));
        if reason.is_some() {
            params.push((&reason, Type::TEXT));
        }
        let sql = sql.replace("{picked}", PICKED);
        let sql = self.table.render(&selection.render(&sql, &self.table, &self.topics));
        Ok(replayed(&transaction.query(doing, &sql, &params).await?))
    }

    /// Records that these events were published to another topic.
    pub(crate) async fn record_copies(
        &self,
        copied: &[Copied],
        topic: &str,
        reason: &str,
    ) -> Result<(), Fault> {
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

fn replayed(rows: &[Row]) -> Replayed {
    let mut replayed = Replayed::default();
    for row in rows {
        match row.get::<_, Option<String>>(0) {
            Some(topic) => replayed.topics.push((topic, row.get::<_, i64>(1).unsigned_abs())),
            None => replayed.reached = row.get(2),
        }
    }
    replayed
}
