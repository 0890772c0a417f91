//! What operators did to dead letters and blocked keys, and what they paused and resumed. Each act is recorded by the
//! statement that does it.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::transaction::ShortTransaction;
use crate::postgres::table::TableName;
use crate::relay::failure::Fault;
use std::time::SystemTime;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Newest first, below an id.
const HISTORY: &str = "
SELECT id, at, role, application, host(address), act, dead_letter_id, outbox_id, event_id, pause_id, aggregate_type, topic,
       reason
FROM {act}
WHERE id < $1::bigint AND ($2::uuid IS NULL OR event_id = $2)
ORDER BY id DESC
LIMIT $3::bigint";

/// What one batch of an operator's act did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acted {
    /// To how many it was done.
    pub done: u64,
    /// How many blocks were only lifted, since their event is gone.
    pub lifted: u64,
    /// The last id that was looked at: the next batch begins behind it.
    pub last: i64,
}

/// One act, on one event or one pause.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    /// Its number.
    pub id: i64,
    /// When.
    pub at: SystemTime,
    /// Who, as Postgres knows them.
    pub role: String,
    /// The `application_name` of the connection.
    pub application: String,
    /// Where it came from; `None` for a socket.
    pub address: Option<String>,
    /// requeue, discard, retry, dead-letter or lift; pause or resume.
    pub act: String,
    /// The dead letter, if the event was or became one.
    pub dead_letter_id: Option<i64>,
    /// The row that Kafka refused; `None` for a pause.
    pub outbox_id: Option<i64>,
    /// The event; `None` for a pause.
    pub event_id: Option<Uuid>,
    /// The pause that began or ended, if that was the act.
    pub pause_id: Option<i64>,
    /// The event's aggregate type, or that of the key that was paused.
    pub aggregate_type: Option<String>,
    /// The topic that the event was meant for, or that was paused.
    pub topic: Option<String>,
    /// Why the event was refused, or, in the words of the operator, why it was paused.
    pub reason: Option<String>,
}

/// The acts on one outbox.
pub(crate) struct PostgresActs {
    transaction: ShortTransaction,
    table: TableName,
}

impl PostgresActs {
    /// Of this outbox. Connects when it is first needed.
    pub(crate) fn new(database: Database, table: TableName) -> PostgresActs {
        PostgresActs { transaction: ShortTransaction::reading(database), table }
    }

    /// The newest acts with an id below `before`, at most `rows`; on this event, if one is given.
    pub(crate) async fn history(
        &self,
        event: Option<Uuid>,
        before: i64,
        rows: i64,
    ) -> Result<Vec<Act>, Fault> {
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
        role: row.get(2),
        application: row.get(3),
        address: row.get(4),
        act: row.get(5),
        dead_letter_id: row.get(6),
        outbox_id: row.get(7),
        event_id: row.get(8),
        pause_id: row.get(9),
        aggregate_type: row.get(10),
        topic: row.get(11),
        reason: row.get(12),
    }
}

/// The answer of a statement that acts: how many, how many were only lifted, up to where. `None`: nothing was left.
pub(crate) fn acted(rows: &[Row]) -> Option<Acted> {
    let row = rows.first()?;
    let last: Option<i64> = row.get(2);
    Some(Acted {
        done: row.get::<_, i64>(0).unsigned_abs(),
        lifted: row.get::<_, i64>(1).unsigned_abs(),
        last: last?,
    })
}
