//! Pauses and resumes publishing. A pause is a row that the read of every claim respects, so it applies to all relays from
//! their next claim.

use crate::connection::connect::Database;
use crate::connection::transaction::{Params, ShortTransaction};
use crate::table::TableName;
use relay::failure::PostgresFault;
use settings::text::in_line;
use std::time::SystemTime;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Inserts nothing if the same pause exists.
const PAUSE: &str = "
WITH begun AS (
    INSERT INTO {pause} (topic, aggregate_type, aggregate_id, reason)
    SELECT $1::text, $2::text, $3::text, $4::text
    WHERE NOT EXISTS (SELECT FROM {pause} p WHERE {same})
    RETURNING id
)
SELECT count(*) FROM begun";

const RESUME: &str = "
WITH ended AS (
    DELETE FROM {pause} p WHERE $4::boolean OR {same} RETURNING id
)
SELECT count(*) FROM ended";

const SAME: &str =
    "(p.topic, p.aggregate_type, p.aggregate_id) IS NOT DISTINCT FROM ($1::text, $2::text, $3::text)";

/// The oldest pauses, at most $1.
pub(crate) const LIST: &str = "
SELECT id, topic, aggregate_type, aggregate_id, reason, role, paused_at
FROM {pause}
ORDER BY id
LIMIT $1::bigint";

/// The events that a pause applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Everything,
    Topic(String),
    Key { aggregate_type: String, aggregate_id: String },
}

/// A pause.
#[derive(Clone, Debug)]
pub struct PausedScope {
    pub id: i64,
    pub scope: Scope,
    /// The operator's reason.
    pub reason: Option<String>,
    /// The role that paused.
    pub role: String,
    pub since: SystemTime,
}

/// The pauses of one outbox.
pub struct PostgresPauses {
    reading: ShortTransaction,
    operating: ShortTransaction,
    table: TableName,
}

impl PostgresPauses {
    /// For this outbox. Connects on first use.
    pub fn new(database: Database, table: TableName) -> PostgresPauses {
        let reading = ShortTransaction::reading(database.clone());
        PostgresPauses { reading, operating: ShortTransaction::operating(database), table }
    }

    /// Pauses a scope. Returns false if it was paused already. If the future is dropped, the outcome is unknown.
    pub async fn pause(&self, scope: &Scope, reason: Option<&str>) -> Result<bool, PostgresFault> {
        let [topic, aggregate_type, aggregate_id] = scope.columns();
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&topic, Type::TEXT),
            (&aggregate_type, Type::TEXT),
            (&aggregate_id, Type::TEXT),
            (&reason, Type::TEXT),
        ];
        Ok(self.act("pausing", PAUSE, &params).await? > 0)
    }

    /// Ends the pause of exactly this scope. Returns false if there was none. If the future is dropped, the outcome is
    /// unknown.
    pub async fn resume(&self, scope: &Scope) -> Result<bool, PostgresFault> {
        Ok(self.end(scope.columns(), false).await? > 0)
    }

    /// Ends every pause, and returns how many there were. If the future is dropped, the outcome is unknown.
    pub async fn resume_all(&self) -> Result<u64, PostgresFault> {
        self.end(Scope::Everything.columns(), true).await
    }

    async fn end(&self, columns: [Option<&str>; 3], all: bool) -> Result<u64, PostgresFault> {
        let [topic, aggregate_type, aggregate_id] = columns;
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&topic, Type::TEXT),
            (&aggregate_type, Type::TEXT),
            (&aggregate_id, Type::TEXT),
            (&all, Type::BOOL),
        ];
        self.act("resuming", RESUME, &params).await
    }

    /// The oldest pauses, at most `rows`.
    pub async fn list(&self, rows: i64) -> Result<Vec<PausedScope>, PostgresFault> {
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&rows, Type::INT8)];
        let rows = self.reading.query("reading the pauses", &self.table.render(LIST), &params).await?;
        Ok(rows.iter().map(paused).collect())
    }

    async fn act(&self, doing: &'static str, sql: &str, params: Params<'_>) -> Result<u64, PostgresFault> {
        let sql = self.table.render(&sql.replace("{same}", SAME));
        let rows = self.operating.query(doing, &sql, params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }
}

impl Scope {
    /// For people, on one line.
    pub fn name(&self) -> String {
        match self {
            Scope::Everything => "everything".to_owned(),
            Scope::Topic(topic) => format!("topic {}", in_line(topic, 249)),
            Scope::Key { aggregate_type, aggregate_id } => {
                format!("key {} of {}", in_line(aggregate_id, 100), in_line(aggregate_type, 100))
            }
        }
    }

    /// Topic, aggregate type and key.
    fn columns(&self) -> [Option<&str>; 3] {
        match self {
            Scope::Everything => [None, None, None],
            Scope::Topic(topic) => [Some(topic), None, None],
            Scope::Key { aggregate_type, aggregate_id } => [None, Some(aggregate_type), Some(aggregate_id)],
        }
    }
}

/// A row of [`LIST`].
pub(crate) fn paused(row: &Row) -> PausedScope {
    let scope = match (row.get(1), row.get(2), row.get(3)) {
        (Some(topic), _, _) => Scope::Topic(topic),
        (None, Some(aggregate_type), Some(aggregate_id)) => Scope::Key { aggregate_type, aggregate_id },
        _ => Scope::Everything,
    };
    PausedScope { id: row.get(0), scope, reason: row.get(4), role: row.get(5), since: row.get(6) }
}
