//! The history of operator actions. Triggers record what a statement does to dead letters, blocked keys and pauses.

use crate::connection::connect::Database;
use crate::connection::transaction::ShortTransaction;
use crate::table::TableName;
use relay::failure::PostgresFault;
use std::time::SystemTime;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

const HISTORY: &str = "
SELECT id, at, to_jsonb(a) ->> 'login', role, application, host(address), act, dead_letter_id, outbox_id, event_id, pause_id, aggregate_type, topic,
       reason
FROM {act} AS a
WHERE id < $1::bigint AND ($2::uuid IS NULL OR event_id = $2)
ORDER BY id DESC
LIMIT $3::bigint";

/// The result of one batch of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchResult {
    /// How many rows the action was performed on.
    pub done: u64,
    /// How many blocks were only lifted, because their event is gone.
    pub lifted: u64,
    /// The last selected id, where the next batch continues.
    pub last: i64,
}

/// A recorded action on one event or one pause.
#[derive(Clone, Debug)]
pub struct Act {
    pub id: i64,
    pub at: SystemTime,
    /// The role that logged in; `None` for acts before the column existed.
    pub login: Option<String>,
    /// The role that performed it: the same one, unless `SET ROLE` has changed it.
    pub role: String,
    /// The `application_name` of the connection.
    pub application: String,
    /// The address of the client; `None` for a Unix socket.
    pub address: Option<String>,
    /// requeue, discard, retry, dead-letter, lift, pause or resume.
    pub act: String,
    /// The dead letter, if the event was or became one.
    pub dead_letter_id: Option<i64>,
    /// The row that Kafka rejected; `None` for a pause.
    pub outbox_id: Option<i64>,
    /// `None` for a pause.
    pub event_id: Option<Uuid>,
    /// The pause that began or ended.
    pub pause_id: Option<i64>,
    /// Of the event, or of the paused key.
    pub aggregate_type: Option<String>,
    /// The topic of the event, or the paused topic.
    pub topic: Option<String>,
    /// The reason of the rejection, or the operator's reason for the pause.
    pub reason: Option<String>,
}

/// The history of one outbox.
pub struct PostgresActs {
    transaction: ShortTransaction,
    table: TableName,
}

impl PostgresActs {
    /// For this outbox. Connects on first use.
    pub fn new(database: Database, table: TableName) -> PostgresActs {
        PostgresActs { transaction: ShortTransaction::reading(database), table }
    }

    /// The newest actions with an id below `before`, at most `rows`, optionally on one event.
    pub async fn history(
        &self,
        event: Option<Uuid>,
        before: i64,
        rows: i64,
    ) -> Result<Vec<Act>, PostgresFault> {
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&before, Type::INT8), (&event, Type::UUID), (&rows, Type::INT8)];
        let sql = self.table.render(HISTORY);
        let rows = self.transaction.query("reading the history", &sql, &params).await?;
        Ok(rows.iter().map(act).collect())
    }
}

fn act(row: &Row) -> Act {
    Act {
        id: row.get(0),
        at: row.get(1),
        login: row.get(2),
        role: row.get(3),
        application: row.get(4),
        address: row.get(5),
        act: row.get(6),
        dead_letter_id: row.get(7),
        outbox_id: row.get(8),
        event_id: row.get(9),
        pause_id: row.get(10),
        aggregate_type: row.get(11),
        topic: row.get(12),
        reason: row.get(13),
    }
}

/// From the row that a statement of an action returns. `None` if nothing was left to do.
pub(crate) fn batch_result(rows: &[Row]) -> Option<BatchResult> {
    let row = rows.first()?;
    let last: Option<i64> = row.get(2);
    Some(BatchResult {
        done: row.get::<_, i64>(0).unsigned_abs(),
        lifted: row.get::<_, i64>(1).unsigned_abs(),
        last: last?,
    })
}
