//! Held topics and pauses, as rows in the database: every relay sees the same ones.

use super::connect::Database;
use super::statements::Statements;
use super::table::TableName;
use super::transaction::{Params, ShortTransaction};
use crate::relay::failure::Fault;
use crate::relay::lane::Lane;
use crate::relay::pauses::{Counts, PAUSES_NAMED_MAX, Pause, Paused};
use crate::relay::prober::{Due, Holds, Waiting, Witness};
use crate::relay::reason::REJECTS_EVERYTHING;
use crate::relay::stats::TOPICS_NAMED_MAX;
use std::rc::Rc;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Hands the topic to one relay for 10 s: should it die while it probes, another one takes over then. A probe may take
/// longer; the lane's lock keeps the others away from its row. A topic that is paused stays as it is: its rows may not be
/// sent, and without a row nothing is found out.
const DUE: &str = "
UPDATE {hold} SET probe_at = now() + interval '10 seconds', probes = probes + 1
WHERE topic = (
    SELECT h.topic
    FROM {hold} h
    WHERE h.probe_at <= now() AND NOT EXISTS (
        SELECT FROM {pause} b WHERE b.aggregate_id IS NULL AND (b.topic IS NULL OR b.topic = h.topic))
    ORDER BY h.probe_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED)
RETURNING topic, reason";

const LIFT: &str = "DELETE FROM {hold} WHERE topic = $1";

/// Exponential, from 1 s to 10 s, with full jitter on the upper half.
const POSTPONE: &str = "
UPDATE {hold}
SET probe_at = now() + least(power(2, least(probes, 10)), 10) * (0.5 + random() / 2) * interval '1 second',
    reason = coalesce($2, reason), error = $3
WHERE topic = $1";

const AGAIN: &str =
    "UPDATE {hold} SET probe_at = now() + interval '1 second', probes = probes - 1 WHERE topic = $1";

const COUNT: &str = "
SELECT (SELECT count(*) FROM {hold}), (SELECT count(*) FROM {blocked_key}), (SELECT max(version) FROM {hold_version}),
       count(*) - count(topic) - count(aggregate_id), count(topic), count(aggregate_id)
FROM {pause}";

const HELD: &str = "SELECT topic, reason FROM {hold} ORDER BY held_at, topic LIMIT $1";

const PAUSES: &str = "SELECT id, topic, aggregate_type, reason FROM {pause} ORDER BY id LIMIT $1::bigint";

/// The prober's way to the holds. Connects when it is first needed, and keeps no connection.
pub struct PostgresHolds {
    transaction: ShortTransaction,
    statements: Rc<Statements>,
    table: TableName,
    /// The topic that is handed to this relay for a probe.
    handed_out: Option<String>,
}

impl PostgresHolds {
    /// The holds of this outbox.
    pub fn new(database: Database, statements: Rc<Statements>, table: TableName) -> PostgresHolds {
        PostgresHolds {
            transaction: ShortTransaction::writing(database),
            statements,
            table,
            handed_out: None,
        }
    }

    async fn query(&self, doing: &'static str, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        self.transaction.query(doing, &self.table.render(sql), params).await
    }
}

impl Holds for PostgresHolds {
    async fn count(&mut self) -> Result<Waiting, Fault> {
        let rows = self.query("counting held topics", COUNT, &[]).await?;
        let paused = |row: &Row| Counts { everything: row.get(3), topics: row.get(4), keys: row.get(5) };
        let waiting = |row: &Row| Waiting {
            topics: row.get(0),
            keys: row.get(1),
            paused: paused(row),
            hold_version: row.get(2),
        };
        Ok(rows.first().map(waiting).unwrap_or_default())
    }

    async fn pauses(&mut self) -> Result<Vec<Pause>, Fault> {
        let most = PAUSES_NAMED_MAX as i64;
        let rows = self.query("naming pauses", PAUSES, &[(&most, Type::INT8)]).await?;
        Ok(rows.iter().map(pause).collect())
    }

    async fn held(&mut self) -> Result<Vec<(String, String)>, Fault> {
        let most = TOPICS_NAMED_MAX as i64;
        let rows = self.query("naming held topics", HELD, &[(&most, Type::INT8)]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn due(&mut self) -> Result<Option<Due>, Fault> {
        // A fault of Postgres ended its probe, and nobody else is to wait for us.
        if let Some(topic) = self.handed_out.clone() {
            self.again(&topic).await?;
        }
        let rows = self.query("looking for a held topic to probe", DUE, &[]).await?;
        let due = rows.first().map(|row| Due { topic: row.get(0), reason: row.get(1) });
        self.handed_out = due.as_ref().map(|due| due.topic.clone());
        Ok(due)
    }

    async fn witness(&mut self, due: &Due) -> Result<Option<Witness>, Fault> {
        let any = due.reason == REJECTS_EVERYTHING.word;
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&due.topic, Type::TEXT), (&any, Type::BOOL), (&lanes, Type::INT2_ARRAY)];
        let doing = "looking for an event to probe a held topic with";
        let rows = self.transaction.query(doing, &self.statements.witness, &params).await?;
        let witness = |row: &Row| {
            let lane = Lane::new(row.get::<_, i16>(0).into())?;
            Some(Witness { lane, id: row.get(1) })
        };
        Ok(rows.first().and_then(witness))
    }

    async fn lift(&mut self, topic: &str) -> Result<(), Fault> {
        self.query("lifting a hold", LIFT, &[(&topic, Type::TEXT)]).await?;
        self.handed_out = None;
        Ok(())
    }

    async fn postpone(&mut self, topic: &str, reason: Option<&str>, error: &str) -> Result<(), Fault> {
        let error = error.replace('\0', "\u{fffd}");
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&topic, Type::TEXT), (&reason, Type::TEXT), (&error, Type::TEXT)];
        self.query("postponing the probe of a held topic", POSTPONE, &params).await?;
        self.handed_out = None;
        Ok(())
    }

    async fn again(&mut self, topic: &str) -> Result<(), Fault> {
        self.query("postponing the probe of a held topic", AGAIN, &[(&topic, Type::TEXT)]).await?;
        self.handed_out = None;
        Ok(())
    }
}

fn pause(row: &Row) -> Pause {
    let paused = match (row.get(1), row.get(2)) {
        (Some(topic), _) => Paused::Topic(topic),
        (None, Some(aggregate_type)) => Paused::KeyOf(aggregate_type),
        (None, None) => Paused::Everything,
    };
    Pause { id: row.get(0), paused, reason: row.get(3) }
}
