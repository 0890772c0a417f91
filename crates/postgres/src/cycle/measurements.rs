//! Measurements for metrics and health, on a connection that nothing else waits for: every 5 s how much is unsent, and once a
//! minute the tables and what holds vacuum back.

use crate::connection::errors::fault;
use crate::connection::exec::ShortTransaction;
use crate::connection::pool::Database;
use crate::cycle::statements::Statements;
use crate::sql::{Script, sql};
use relay::Relay;
use relay::failure::{FaultKind, PostgresFault};
use relay::health::availability::Availability;
use relay::lanes::scout::{SCOUT, after};
use relay::lanes::{LANES, Lane};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How much is unsent.
const BACKLOG_EVERY: Duration = Duration::from_secs(5);
/// The tables, because this reads the size of each of their files.
const TABLES_EVERY: Duration = Duration::from_secs(60);
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The tables that can grow without limit.
const TABLES: [&str; 3] = ["{outbox}", "{dead_letter}", "{act}"];
const ADVICE: &str = "Events are still published, but metrics are outdated. If this is a timeout, check with \
     `outbox-relay status` whether vacuum keeps up";

/// What is measured on a schedule of its own.
#[derive(Clone, Copy)]
enum Kind {
    Backlog,
    Oldest,
    Tables,
}

/// Measures until the relay ends, even while Kafka is unavailable. A failure does not stop publishing.
pub async fn keep_measuring<P>(relay: Rc<Relay<P>>, database: Database, statements: Rc<Statements>) {
    // READ WRITE, although it only reads, so that a standby rejects it.
    let transaction = ShortTransaction::writing(database);
    let measurements = Measurements { relay: &relay, transaction, statements };
    let outage = Availability::new("backlog measurements", "backlog_not_measured");
    let outage = outage.described("failing", "working again");
    let (mut due, mut works) = ([Instant::now(); 3], [false; 3]);
    loop {
        for (kind, every) in
            [(Kind::Backlog, BACKLOG_EVERY), (Kind::Oldest, BACKLOG_EVERY), (Kind::Tables, TABLES_EVERY)]
        {
            let begun = Instant::now();
            if begun < due[kind as usize] {
                continue;
            }
            let measured = match kind {
                Kind::Backlog => measurements.measure_backlog().await,
                Kind::Oldest => measurements.measure_oldest().await,
                Kind::Tables => measurements.measure_tables().await,
            };
            due[kind as usize] = after(&measured, begun, every);
            works[kind as usize] = measured.is_ok();
            match measured {
                Err(fault) if fault.kind == FaultKind::Unavailable => {
                    due[kind as usize] = Instant::now() + RETRY_AFTER;
                    measurements.note_unavailable(begun, &fault);
                }
                Err(fault) => outage.failed(kind as usize, &fault, ADVICE),
                Ok(()) => {
                    outage.worked(kind as usize);
                    measurements.note_available();
                    if matches!(kind, Kind::Oldest) && works[Kind::Backlog as usize] {
                        relay.stats.measured();
                    }
                }
            }
        }
        sleep_until(due.into_iter().min().unwrap_or_else(Instant::now)).await;
    }
}

struct Measurements<'a, P> {
    relay: &'a Relay<P>,
    transaction: ShortTransaction,
    statements: Rc<Statements>,
}

impl<P> Measurements<'_, P> {
    /// While Kafka is unavailable, the scout asks PostgreSQL nothing. Otherwise it fails in the same way and says so.
    fn note_unavailable(&self, begun: Instant, fault: &PostgresFault) {
        if self.relay.kafka.gate.is_open() {
            tracing::debug!("{fault}");
        } else {
            self.relay.health.postgres_failed(SCOUT, begun, fault);
        }
    }

    fn note_available(&self) {
        if !self.relay.kafka.gate.is_open() {
            self.relay.health.postgres.needed_only_by(&[SCOUT]);
            self.relay.health.postgres_worked(SCOUT);
        }
    }

    /// Counts the unsent rows above the marks: exact up to 10,000, then an estimate from the ids.
    async fn measure_backlog(&self) -> Result<(), PostgresFault> {
        const DOING: &str = "estimating the backlog";
        let (lanes, numbers) = lanes();
        let lows = self.relay.lanes.marks.borrow().snapshot(&lanes).lows;
        let params = params![numbers => INT2_ARRAY, lows => INT8_ARRAY];
        let rows = self.transaction.query(DOING, &self.statements.queries.backlog, &params).await?;
        let unsent = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(|error| fault(DOING, error))?;
        self.relay.stats.backlog.set(unsent);
        Ok(())
    }

    /// Measures the age of the oldest unsent row, even of a held topic, and reads the database's clock. The marks apply if
    /// nothing is held or paused. Otherwise this walks index entries that vacuum has not removed, like a sweep.
    async fn measure_oldest(&self) -> Result<(), PostgresFault> {
        const DOING: &str = "looking for the oldest event";
        let (lanes, numbers) = lanes();
        let marks = self.relay.lanes.marks.borrow().snapshot(&lanes);
        let params = params![numbers => INT2_ARRAY, marks.lows => INT8_ARRAY, marks.epoch.number() => INT8];
        let rows = self.transaction.query(DOING, &self.statements.queries.oldest, &params).await?;
        let Some(row) = rows.first() else { unreachable!("an aggregate without GROUP BY is one row") };
        self.relay.stats.oldest_seconds.set(row.get::<_, Option<f64>>(0).unwrap_or_default());
        self.relay.health.note_clock(row.get(1));
        Ok(())
    }

    async fn measure_tables(&self) -> Result<(), PostgresFault> {
        const DOING: &str = "measuring the tables";
        let (stats, table) = (&self.relay.stats, &self.statements.table);
        let tables = TABLES.map(|name| table.render(name));
        let params = params![tables.as_slice() => TEXT_ARRAY];
        let sizes = Script::new(sql!("relay/sizes"), table).render();
        let rows = self.transaction.query(DOING, &sizes, &params).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        for (name, bytes) in TABLES.iter().zip(row.get::<_, Vec<i64>>(0)) {
            stats.table_bytes.at([&table.name_of(name)]).set(bytes);
        }
        stats.transaction_id_age.set(row.get(1));
        let lanes: i64 = row.get(2);
        let holders = Script::new(sql!("status/vacuum_holders"), table).render();
        let rows = self.transaction.query(DOING, &holders, &params![1_i64 => INT8]).await?;
        stats.vacuum_held_back.set(rows.first().map_or(0, |row| row.get::<_, i32>(4)).into());
        if lanes < LANES as i64 {
            // A claim cannot tell a missing row from one that another relay has locked.
            let lane = table.render("{lane}");
            let message = format!(
                "{lane} has only {lanes} of {LANES} rows, so events of the missing lanes wait: see `outbox-relay doctor`"
            );
            return Err(PostgresFault { kind: FaultKind::Refused, doing: DOING, message });
        }
        Ok(())
    }
}

fn lanes() -> (Vec<Lane>, Vec<i16>) {
    (Lane::all().collect(), Lane::all().map(Lane::number).collect())
}
