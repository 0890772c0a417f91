//! Held topics, as rows in the database: every relay sees the same ones.

use super::connect::Database;
use super::table::TableName;
use super::transaction::{Params, ShortTransaction};
use crate::relay::failure::{Failure, Fault};
use crate::relay::prober::Holds;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Hands the topic to one relay for 30 s: should it die while it probes, another one takes over then.
const DUE: &str = "
UPDATE {hold} SET probe_at = now() + interval '30 seconds', probes = probes + 1
WHERE topic = (SELECT topic FROM {hold} WHERE probe_at <= now() ORDER BY probe_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING topic";

const LIFT: &str = "DELETE FROM {hold} WHERE topic = $1";

/// Exponential, from 1 s to 10 s, with full jitter on the upper half.
const POSTPONE: &str = "
UPDATE {hold}
SET probe_at = now() + least(power(2, least(probes, 10)), 10) * (0.5 + random() / 2) * interval '1 second',
    reason = $2, error = $3
WHERE topic = $1";

const COUNT: &str = "SELECT count(*) FROM {hold}";

/// The prober's way to the holds. Connects when it is first needed, and keeps no connection.
pub struct PostgresHolds {
    transaction: ShortTransaction,
    table: TableName,
}

impl PostgresHolds {
    /// The holds of this outbox.
    pub fn new(database: Database, table: TableName) -> PostgresHolds {
        PostgresHolds { transaction: ShortTransaction::writing(database), table }
    }

    async fn query(&self, doing: &'static str, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        self.transaction.query(doing, &self.table.render(sql), params).await
    }
}

impl Holds for PostgresHolds {
    async fn count(&mut self) -> Result<i64, Fault> {
        let rows = self.query("counting held topics", COUNT, &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    async fn due(&mut self) -> Result<Option<String>, Fault> {
        let rows = self.query("looking for a held topic to probe", DUE, &[]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    async fn lift(&mut self, topic: &str) -> Result<(), Fault> {
        self.query("lifting a hold", LIFT, &[(&topic, Type::TEXT)]).await?;
        Ok(())
    }

    async fn postpone(&mut self, topic: &str, failure: &Failure) -> Result<(), Fault> {
        let error = failure.error.replace('\0', "\u{fffd}");
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&topic, Type::TEXT), (&failure.reason, Type::TEXT), (&error, Type::TEXT)];
        self.query("postponing the probe of a held topic", POSTPONE, &params).await?;
        Ok(())
    }
}
