//! Held topics and pauses, which are rows in the database, so that all relays agree on them.

use crate::connection::exec::ShortTransaction;
use crate::connection::pool::Database;
use crate::cycle::settle::storable;
use crate::cycle::statements::{Queries, Statements};
use relay::failure::PostgresFault;
use relay::health::stats::TOPICS_NAMED_MAX;
use relay::holds::{Counts, Due, ExampleRow, Failed, Holds, LEASE, PAUSES_NAMED_MAX, Pause, Waiting};
use relay::lanes::Lane;
use relay::reason::REJECTS_EVERYTHING;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::SystemTime;
use tokio_postgres::Row;
use uuid::Uuid;

/// The prober's access to the holds. It connects on first use, and keeps no connection.
pub struct PostgresHolds {
    transaction: ShortTransaction,
    statements: Rc<Statements>,
    /// The due times that this relay set last. Those that a lease, a probe or another relay has replaced since have no effect.
    postponed: HashMap<String, SystemTime>,
    /// The last count, and the start of the server that it came from.
    counted: Option<(Waiting, SystemTime)>,
}

impl PostgresHolds {
    pub fn new(database: Database, statements: Rc<Statements>) -> PostgresHolds {
        PostgresHolds {
            transaction: ShortTransaction::writing(database),
            statements,
            postponed: HashMap::new(),
            counted: None,
        }
    }

    fn queries(&self) -> &Queries {
        &self.statements.queries
    }
}

const POSTPONING: &str = "postponing the probes of held topics";
const LEASE_MS: i32 = LEASE.as_millis() as i32;

impl Holds for PostgresHolds {
    async fn unsent(&mut self, ids: &[i64], event_ids: &[Uuid]) -> Result<HashSet<i64>, PostgresFault> {
        let params = params![ids => INT8_ARRAY, event_ids => UUID_ARRAY];
        let doing = "checking which events are recorded as sent";
        let rows = self.transaction.query(doing, &self.queries().unsent, &params).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn count(&mut self) -> Result<Waiting, PostgresFault> {
        let (last, server_started) = self.counted.unzip();
        let params = params![last.map(|last| last.hold_version) => INT8, server_started => TIMESTAMPTZ];
        let rows = self.transaction.query("counting held topics", &self.queries().count, &params).await?;
        let Some(row) = rows.first() else { return Ok(Waiting::default()) };
        let keys = row.get::<_, Option<i64>>(1).or(last.map(|last| last.keys)).unwrap_or_default();
        let hold_version = row.get::<_, Option<i64>>(2).unwrap_or_default();
        let paused = Counts { everything: row.get(3), topics: row.get(4), keys: row.get(5) };
        let waiting = Waiting { topics: row.get(0), keys, paused, hold_version };
        self.counted = Some((waiting, row.get(6)));
        Ok(waiting)
    }

    async fn pauses(&mut self) -> Result<Vec<Pause>, PostgresFault> {
        let params = params![PAUSES_NAMED_MAX as i64 => INT8];
        let rows = self.transaction.query("reading pauses", &self.queries().pauses, &params).await?;
        Ok(rows.iter().map(pause).collect())
    }

    async fn held(&mut self) -> Result<Vec<(String, String)>, PostgresFault> {
        let params = params![TOPICS_NAMED_MAX as i64 => INT8];
        let rows = self.transaction.query("listing held topics", &self.queries().held, &params).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn due(&mut self, most: usize) -> Result<Vec<Due>, PostgresFault> {
        const DOING: &str = "looking for held topics to probe";
        let params = params![most as i64 => INT8, LEASE_MS => INT4];
        let rows = self.transaction.query(DOING, &self.queries().due, &params).await?;
        Ok(rows.iter().map(|row| Due { topic: row.get(0), reason: row.get(1) }).collect())
    }

    async fn examples(&mut self, due: &[Due]) -> Result<Vec<Option<ExampleRow>>, PostgresFault> {
        let topics: Vec<&str> = due.iter().map(|due| due.topic.as_str()).collect();
        let any: Vec<bool> = due.iter().map(|due| due.reason == REJECTS_EVERYTHING.word).collect();
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let params = params![topics => TEXT_ARRAY, any => BOOL_ARRAY, lanes => INT2_ARRAY];
        let doing = "looking for events to probe held topics with";
        let rows = self.transaction.query(doing, &self.queries().examples, &params).await?;
        let example = |row: &Row| {
            let lane = Lane::new(row.get::<_, i16>(1).into())?;
            let key = row.get::<_, Option<String>>(3).map(String::into_bytes);
            Some((row.get::<_, String>(0), ExampleRow { lane, id: row.get(2), key }))
        };
        let mut found: HashMap<String, ExampleRow> = rows.iter().filter_map(example).collect();
        Ok(due.iter().map(|due| found.remove(&due.topic)).collect())
    }

    async fn release(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        let params = params![topics => TEXT_ARRAY];
        self.transaction.query("releasing topics", &self.queries().release_holds, &params).await?;
        topics.iter().for_each(|topic| _ = self.postponed.remove(*topic));
        Ok(())
    }

    async fn postpone(&mut self, failed: &[Failed<'_>]) -> Result<(), PostgresFault> {
        let topics: Vec<&str> = failed.iter().map(|failed| failed.topic).collect();
        let reasons: Vec<Option<&str>> = failed.iter().map(|failed| failed.reason).collect();
        let errors: Vec<String> = failed.iter().map(|failed| storable(failed.error)).collect();
        let params = params![topics => TEXT_ARRAY, reasons => TEXT_ARRAY, errors => TEXT_ARRAY];
        let rows = self.transaction.query(POSTPONING, &self.queries().postpone, &params).await?;
        self.postponed.extend(rows.iter().map(|row| (row.get::<_, String>(0), row.get(1))));
        Ok(())
    }

    async fn retry_soon(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        let params = params![topics => TEXT_ARRAY];
        self.transaction.query(POSTPONING, &self.queries().retry_soon, &params).await.map(drop)
    }

    async fn renew_leases(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        const DOING: &str = "renewing leases on held topics";
        let params = params![topics => TEXT_ARRAY, LEASE_MS => INT4];
        self.transaction.query(DOING, &self.queries().renew_leases, &params).await.map(drop)
    }

    async fn make_due(&mut self) -> Result<(), PostgresFault> {
        const DOING: &str = "probing held topics early";
        if self.postponed.is_empty() {
            return Ok(());
        }
        let (topics, times): (Vec<String>, Vec<SystemTime>) = self.postponed.drain().unzip();
        let params = params![topics => TEXT_ARRAY, times => TIMESTAMPTZ_ARRAY];
        self.transaction.query(DOING, &self.queries().make_due, &params).await.map(drop)
    }
}

fn pause(row: &Row) -> Pause {
    let scope = match (row.get::<_, Option<&str>>(1), row.get::<_, Option<&str>>(2)) {
        (Some(topic), _) => Some(format!("topic {topic}")),
        (None, Some(aggregate_type)) => Some(format!("a key of {aggregate_type}")),
        (None, None) => None,
    };
    Pause { id: row.get(0), scope, reason: row.get(3) }
}
