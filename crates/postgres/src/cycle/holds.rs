//! Held topics and pauses, which are rows in the database, so that all relays agree on them.

use crate::connection::connect::Database;
use crate::connection::transaction::{Params, ShortTransaction};
use crate::cycle::statements::Statements;
use crate::cycle::statements::probes::{
    COUNT, DUE, HELD, MAKE_DUE, PAUSES, POSTPONE, RELEASE_HOLDS, RENEW_LEASES, RETRY_SOON, UNSENT,
};
use crate::cycle::statements::query::Template;
use crate::table::TableName;
use relay::failure::PostgresFault;
use relay::health::stats::TOPICS_NAMED_MAX;
use relay::holds::{Counts, PAUSES_NAMED_MAX, Pause, PauseScope};
use relay::holds::{Due, ExampleRow, Failed, Holds, LEASE, Waiting};
use relay::lanes::Lane;
use relay::reason::REJECTS_EVERYTHING;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::SystemTime;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// The prober's access to the holds. It connects on first use, and keeps no connection.
pub struct PostgresHolds {
    transaction: ShortTransaction,
    statements: Rc<Statements>,
    table: TableName,
    /// The due times of topics that this relay postponed last.
    postponed: HashMap<String, SystemTime>,
    counted: Option<Counted>,
}

/// The number of blocked keys at one version of the holds.
struct Counted {
    hold_version: i64,
    server_started: SystemTime,
    keys: i64,
}

impl PostgresHolds {
    /// For this outbox.
    pub fn new(database: Database, statements: Rc<Statements>, table: TableName) -> PostgresHolds {
        PostgresHolds {
            transaction: ShortTransaction::writing(database),
            statements,
            table,
            postponed: HashMap::new(),
            counted: None,
        }
    }

    async fn query(
        &self,
        doing: &'static str,
        sql: Template,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        self.transaction.query(doing, &self.table.render(sql.sql), params).await
    }

    /// How many of these rows are unsent.
    pub async fn count_unsent(&self, ids: &[i64], event_ids: &[Uuid]) -> Result<usize, PostgresFault> {
        let params: Params<'_> = &[(&ids, Type::INT8_ARRAY), (&event_ids, Type::UUID_ARRAY)];
        let rows = self.query("checking which events are recorded as sent", UNSENT, params).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0)) as usize)
    }

    fn forget_postponed(&mut self, topics: &[&str]) {
        topics.iter().for_each(|topic| _ = self.postponed.remove(*topic));
    }
}

const POSTPONING: &str = "postponing the probes of held topics";

fn lease_ms() -> i32 {
    LEASE.as_millis() as i32
}

impl Holds for PostgresHolds {
    async fn count(&mut self) -> Result<Waiting, PostgresFault> {
        let hold_version = self.counted.as_ref().map(|counted| counted.hold_version);
        let server_started = self.counted.as_ref().map(|counted| counted.server_started);
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&hold_version, Type::INT8), (&server_started, Type::TIMESTAMPTZ)];
        let rows = self.query("counting held topics", COUNT, &params).await?;
        let Some(row) = rows.first() else { return Ok(Waiting::default()) };
        let known = self.counted.as_ref().map_or(0, |counted| counted.keys);
        let keys = row.get::<_, Option<i64>>(1).unwrap_or(known);
        let hold_version = row.get::<_, Option<i64>>(2).unwrap_or_default();
        self.counted = Some(Counted { hold_version, server_started: row.get(6), keys });
        let paused = Counts { everything: row.get(3), topics: row.get(4), keys: row.get(5) };
        Ok(Waiting { topics: row.get(0), keys, paused, hold_version })
    }

    async fn pauses(&mut self) -> Result<Vec<Pause>, PostgresFault> {
        let most = PAUSES_NAMED_MAX as i64;
        let rows = self.query("reading pauses", PAUSES, &[(&most, Type::INT8)]).await?;
        Ok(rows.iter().map(pause).collect())
    }

    async fn held(&mut self) -> Result<Vec<(String, String)>, PostgresFault> {
        let most = TOPICS_NAMED_MAX as i64;
        let rows = self.query("listing held topics", HELD, &[(&most, Type::INT8)]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn due(&mut self, most: usize) -> Result<Vec<Due>, PostgresFault> {
        let (most, lease) = (most as i64, lease_ms());
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&most, Type::INT8), (&lease, Type::INT4)];
        let rows = self.query("looking for held topics to probe", DUE, &params).await?;
        let due: Vec<Due> = rows.iter().map(|row| Due { topic: row.get(0), reason: row.get(1) }).collect();
        due.iter().for_each(|due| _ = self.postponed.remove(&due.topic));
        Ok(due)
    }

    async fn examples(&mut self, due: &[Due]) -> Result<Vec<Option<ExampleRow>>, PostgresFault> {
        let topics: Vec<&str> = due.iter().map(|due| due.topic.as_str()).collect();
        let any: Vec<bool> = due.iter().map(|due| due.reason == REJECTS_EVERYTHING.word).collect();
        let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&topics, Type::TEXT_ARRAY), (&any, Type::BOOL_ARRAY), (&lanes, Type::INT2_ARRAY)];
        let doing = "looking for events to probe held topics with";
        let rows = self.transaction.query(doing, &self.statements.witnesses, &params).await?;
        let witness = |row: &Row| {
            let lane = Lane::new(row.get::<_, i16>(1).into())?;
            let key = row.get::<_, Option<String>>(3).map(String::into_bytes);
            Some((row.get::<_, String>(0), ExampleRow { lane, id: row.get(2), key }))
        };
        let mut found: HashMap<String, ExampleRow> = rows.iter().filter_map(witness).collect();
        Ok(due.iter().map(|due| found.remove(&due.topic)).collect())
    }

    async fn release(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        self.query("releasing topics", RELEASE_HOLDS, &[(&topics, Type::TEXT_ARRAY)]).await?;
        self.forget_postponed(topics);
        Ok(())
    }

    async fn postpone(&mut self, failed: &[Failed<'_>]) -> Result<(), PostgresFault> {
        let topics: Vec<&str> = failed.iter().map(|failed| failed.topic).collect();
        let reasons: Vec<Option<&str>> = failed.iter().map(|failed| failed.reason).collect();
        let errors: Vec<String> =
            failed.iter().map(|failed| failed.error.replace('\0', "\u{fffd}")).collect();
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&topics, Type::TEXT_ARRAY), (&reasons, Type::TEXT_ARRAY), (&errors, Type::TEXT_ARRAY)];
        let rows = self.query(POSTPONING, POSTPONE, &params).await?;
        self.forget_postponed(&topics);
        self.postponed.extend(rows.iter().map(|row| (row.get::<_, String>(0), row.get(1))));
        Ok(())
    }

    async fn retry_soon(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        self.query(POSTPONING, RETRY_SOON, &[(&topics, Type::TEXT_ARRAY)]).await?;
        self.forget_postponed(topics);
        Ok(())
    }

    async fn renew_leases(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        let lease = lease_ms();
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&topics, Type::TEXT_ARRAY), (&lease, Type::INT4)];
        self.query("renewing leases on held topics", RENEW_LEASES, &params).await.map(drop)
    }

    async fn make_due(&mut self) -> Result<(), PostgresFault> {
        if self.postponed.is_empty() {
            return Ok(());
        }
        let (topics, times): (Vec<String>, Vec<SystemTime>) = self.postponed.drain().unzip();
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&topics, Type::TEXT_ARRAY), (&times, Type::TIMESTAMPTZ_ARRAY)];
        self.query("probing held topics early", MAKE_DUE, &params).await.map(drop)
    }
}

fn pause(row: &Row) -> Pause {
    let scope = match (row.get(1), row.get(2)) {
        (Some(topic), _) => PauseScope::Topic(topic),
        (None, Some(aggregate_type)) => PauseScope::KeyOf(aggregate_type),
        (None, None) => PauseScope::Everything,
    };
    Pause { id: row.get(0), scope, reason: row.get(3) }
}
