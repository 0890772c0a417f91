//! Pauses and resumes publishing. A pause is a row that the read of every claim respects, so it applies to all relays from
//! their next claim.

use crate::connection::exec::{Params, ShortTransaction};
use crate::connection::pool::Database;
use crate::diagnose::status::as_time;
use crate::sql::{Script, sql};
use crate::table::TableName;
use relay::failure::PostgresFault;
use serde::{Serialize, Serializer};
use settings::text::in_line;
use std::time::SystemTime;
use tokio_postgres::Row;

/// Lists the pause of everything and then the oldest pauses, at most $1, each with the number of all.
pub(crate) const LIST: &str = sql!("operate/pauses/list");

/// The events that a pause applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Everything,
    Topic(String),
    Key { aggregate_type: String, aggregate_id: String },
}

#[derive(Clone, Debug, Serialize)]
pub struct PausedScope {
    pub id: i64,
    #[serde(flatten)]
    pub scope: Scope,
    pub reason: Option<String>,
    /// The role that paused.
    #[serde(rename = "by")]
    pub role: String,
    #[serde(serialize_with = "as_time")]
    pub since: SystemTime,
}

impl From<&Row> for PausedScope {
    fn from(row: &Row) -> PausedScope {
        let scope = match (row.get(1), row.get(2), row.get(3)) {
            (Some(topic), _, _) => Scope::Topic(topic),
            (None, Some(aggregate_type), Some(aggregate_id)) => Scope::Key { aggregate_type, aggregate_id },
            _ => Scope::Everything,
        };
        PausedScope { id: row.get(0), scope, reason: row.get(4), role: row.get(5), since: row.get(6) }
    }
}

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
        let params = params![topic => TEXT, aggregate_type => TEXT, aggregate_id => TEXT, reason => TEXT];
        let pause = || self.act("pausing", sql!("operate/pauses/pause"), &params);
        // The first statement may have seen a pause that another session was ending. It then waited for that session.
        Ok(pause().await? > 0 || pause().await? > 0)
    }

    /// Ends the pause of exactly this scope, or every pause. Returns how many there were. If the future is dropped, the outcome
    /// is unknown.
    pub async fn resume(&self, scope: &Scope, all: bool) -> Result<u64, PostgresFault> {
        let [topic, aggregate_type, aggregate_id] = scope.columns();
        let params = params![topic => TEXT, aggregate_type => TEXT, aggregate_id => TEXT, all => BOOL];
        self.act("resuming", sql!("operate/pauses/resume"), &params).await
    }

    /// The pause of everything and then the oldest pauses, at most `rows`, and the number of all.
    pub async fn list(&self, rows: i64) -> Result<(Vec<PausedScope>, i64), PostgresFault> {
        let sql = Script::new(LIST, &self.table).render();
        let rows = self.reading.query("reading the pauses", &sql, &params![rows => INT8]).await?;
        Ok((rows.iter().map(PausedScope::from).collect(), total(&rows)))
    }

    async fn act(
        &self,
        doing: &'static str,
        text: &'static str,
        params: Params<'_>,
    ) -> Result<u64, PostgresFault> {
        let sql = Script::new(text, &self.table).render();
        let rows = self.operating.query(doing, &sql, params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }
}

/// The number of all pauses, in the rows of [`LIST`].
pub(crate) fn total(rows: &[Row]) -> i64 {
    rows.first().map_or(0, |row| row.get(7))
}

/// As four fields, which are null if they do not apply.
impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let scope = match self {
            Scope::Everything => "everything",
            Scope::Topic(_) => "topic",
            Scope::Key { .. } => "key",
        };
        let [topic, aggregate_type, key] = self.columns();
        let columns = [("topic", topic), ("aggregate_type", aggregate_type), ("key", key)];
        serializer.collect_map([("scope", Some(scope))].into_iter().chain(columns))
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
