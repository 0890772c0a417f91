//! The scout's connection. Each query is one round trip. Looks share a transaction, because beginning one with its settings costs more
//! than a look. In READ COMMITTED each statement has its own snapshot, and none is kept between them. A scan does not share it: it
//! locks more tables, and could deadlock with a session that has locked them in another order.

use crate::connection::errors::{answer, fault};
use crate::connection::exec::{Params, Place, ShortTransaction};
use crate::connection::pool::{Database, serial};
use crate::cycle::statements::Statements;
use deadpool_postgres::Object;
use relay::failure::{FaultKind, PostgresFault};
use relay::lanes::Lane;
use relay::lanes::marks::{MarksSnapshot, Writer};
use relay::lanes::scout::{Look, Looked, Scan, ScoutQueries};
use relay::outbox::{Epoch, ServerId};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio_postgres::Row;

/// How long looks share a transaction. It has a lock that makes a change of the table wait, and between two such transactions nothing
/// is locked, so that vacuum can truncate the table.
const SHARED_FOR: Duration = Duration::from_millis(90);

/// The scout's access to the outbox. It connects on first use.
pub struct PostgresScoutQueries {
    transaction: ShortTransaction,
    statements: Rc<Statements>,
    connection: Option<Object>,
    /// When the transaction began that looks have left open.
    open_since: Option<Instant>,
    /// What the first look in that transaction has returned, apart from its rows.
    seen: Option<Looked>,
}

impl PostgresScoutQueries {
    pub fn new(database: Database, statements: Rc<Statements>) -> PostgresScoutQueries {
        // READ WRITE, although it only reads, so that a standby rejects it. On a demoted server, the scout would see neither
        // new rows nor writers.
        PostgresScoutQueries {
            transaction: ShortTransaction::writing(database),
            statements,
            connection: None,
            open_since: None,
            seen: None,
        }
    }

    /// Runs a query. Also returns the serial number of the connection.
    async fn query(
        &mut self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<(u64, Vec<Row>), PostgresFault> {
        self.rest().await?;
        let serial = self.connect().await?;
        let Some(connection) = &self.connection else { unreachable!("it has just connected") };
        let rows = self.transaction.query_on(connection, Place::Only, doing, sql, params).await;
        if rows.as_ref().is_err_and(|fault| !fault.kind.keeps_connection()) {
            self.close();
        }
        Ok((serial, rows?))
    }

    /// Connects unless there is a usable connection. Returns its serial number.
    async fn connect(&mut self) -> Result<u64, PostgresFault> {
        if let Some(connection) = self.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(serial(connection));
        }
        (self.connection, self.open_since) = (None, None);
        let connection = self.connection.insert(self.transaction.connect().await?);
        Ok(serial(connection))
    }

    /// Runs a statement in the transaction that looks share: begins it, or ends it once it is old.
    async fn share(
        &mut self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        let Some(connection) = &self.connection else { unreachable!("it has just connected") };
        let place = match self.open_since {
            None => Place::First,
            Some(at) if at.elapsed() < SHARED_FOR => Place::Next,
            Some(_) => Place::Last,
        };
        if place == Place::First {
            (self.open_since, self.seen) = (Some(Instant::now()), None);
        }
        let rows = self.transaction.query_on(connection, place, doing, sql, params).await;
        match (&rows, place) {
            (Err(_), _) => self.close(),
            (Ok(_), Place::Last) => self.open_since = None,
            (Ok(_), _) => {}
        }
        rows
    }

    /// Closes the connection instead of returning it, because its transaction may be open.
    fn close(&mut self) {
        self.open_since = None;
        drop(self.connection.take().map(Object::take));
    }
}

impl Drop for PostgresScoutQueries {
    fn drop(&mut self) {
        if self.open_since.is_some() {
            self.close();
        }
    }
}

impl ScoutQueries for PostgresScoutQueries {
    async fn scan(
        &mut self,
        lanes: &[Lane],
        marks: &MarksSnapshot,
        rows_max: usize,
    ) -> Result<Scan, PostgresFault> {
        const DOING: &str = "scanning for events";
        let statements = Rc::clone(&self.statements);
        let numbers: Vec<i16> = lanes.iter().map(|lane| lane.number()).collect();
        let MarksSnapshot { lows, epoch, excepted, .. } = marks;
        let rows_max = rows_max as i64;
        let params = params![
            numbers => INT2_ARRAY, *lows => INT8_ARRAY, epoch.number() => INT8, excepted.xids => INT8_ARRAY,
            excepted.floor => INT8, rows_max => INT8
        ];
        let (connection, rows) = self.query(DOING, &statements.queries.scan, &params).await?;
        // There is a row for each lane, unless the row with the version of the holds is missing.
        let Some(first) = rows.first() else {
            let message = format!(
                "{} has no row, so no event is found. Fix: run `outbox-relay check-config --connect`, which names all missing rows",
                statements.table.render("{hold_version}")
            );
            return Err(PostgresFault { kind: FaultKind::Refused, doing: DOING, message });
        };
        scan(connection, first, &rows).map_err(|error| fault(DOING, error))
    }

    async fn writers(&mut self) -> Result<(ServerId, Vec<Writer>), PostgresFault> {
        const DOING: &str = "listing open transactions that write to the outbox";
        let statements = Rc::clone(&self.statements);
        let table = statements.table.quoted();
        let params = params![table => TEXT];
        let (connection, rows) = if self.open_since.is_some_and(|at| at.elapsed() < SHARED_FOR) {
            (self.connect().await?, self.share(DOING, &statements.queries.writers, &params).await?)
        } else {
            self.query(DOING, &statements.queries.writers, &params).await?
        };
        let mut server = ServerId { connection, started_us: 0, backend: 0 };
        let mut writers = Vec::with_capacity(rows.len());
        for row in &rows {
            let read =
                || Ok((row.try_get(0)?, row.try_get(1)?, row.try_get::<_, Option<_>>(2)?, row.try_get(3)?));
            let (started_us, backend, name, xid) = read().map_err(|error| fault(DOING, error))?;
            server = ServerId { connection, started_us, backend };
            writers.extend(name.map(|name| Writer { name, xid }));
        }
        Ok((server, writers))
    }

    async fn look(&mut self, look: &Look) -> Result<Looked, PostgresFault> {
        const DOING: &str = "looking for new events";
        let statements = Rc::clone(&self.statements);
        let above = look.above.unwrap_or(i64::MIN);
        let most = Looked::ROWS_MAX as i64;
        let params = params![above => INT8, look.gaps => INT8_ARRAY, most => INT8];
        let number = self.connect().await?;
        if let (Some(_), Some(seen), Some(above), []) = (self.open_since, &self.seen, look.above, &*look.gaps)
        {
            // Most looks find nothing, and the whole statement costs several times as much.
            let seen = seen.clone();
            if self.share(DOING, &statements.queries.glance, &params![above => INT8]).await?.is_empty() {
                return Ok(seen);
            }
        }
        let rows = self.share(DOING, &statements.queries.look, &params).await;
        let looked = looked(number, &rows?).map_err(|error| fault(DOING, error))?;
        self.seen = Some(Looked { rows: Vec::new(), ..looked.clone() });
        Ok(looked)
    }

    async fn rest(&mut self) -> Result<(), PostgresFault> {
        const DOING: &str = "ending the transaction of looks";
        let Some(connection) = self.connection.as_ref().filter(|_| self.open_since.is_some()) else {
            return Ok(());
        };
        if connection.is_closed() {
            self.close();
            return Ok(());
        }
        let ended = answer(DOING, connection.batch_execute("COMMIT")).await;
        match ended {
            Ok(()) => self.open_since = None,
            Err(_) => self.close(),
        }
        ended
    }
}

fn scan(connection: u64, first: &Row, rows: &[Row]) -> Result<Scan, tokio_postgres::Error> {
    let server = ServerId { connection, started_us: first.try_get(2)?, backend: first.try_get(3)? };
    let epoch = first.try_get::<_, i64>(4)?.into();
    let (mut first_unsent, mut hidden_to, mut newest_hidden) = (Vec::new(), Vec::new(), None);
    for row in rows {
        let lane: i16 = row.try_get(0)?;
        let Some(lane) = Lane::new(lane.into()) else { continue };
        first_unsent.extend(row.try_get::<_, Option<i64>>(1)?.map(|id| (lane, id)));
        hidden_to.extend(row.try_get::<_, Option<i64>>(5)?.map(|id| (lane, id)));
        newest_hidden = newest_hidden.max(row.try_get(6)?);
    }
    Ok(Scan { server, epoch, first_unsent, hidden_to, newest_hidden })
}

fn looked(connection: u64, rows: &[Row]) -> Result<Looked, tokio_postgres::Error> {
    let server = ServerId { connection, started_us: 0, backend: 0 };
    let mut looked = Looked { server, hold_version: -1, epoch: Epoch::NONE, rows: Vec::new() };
    for row in rows {
        looked.server = ServerId { connection, started_us: row.try_get(0)?, backend: row.try_get(1)? };
        (looked.hold_version, looked.epoch) = (row.try_get(2)?, row.try_get::<_, i64>(3)?.into());
        let lane: Option<i16> = row.try_get(5)?;
        if let Some(id) = row.try_get(4)? {
            looked.rows.push((id, lane.and_then(|lane| Lane::new(lane.into()))));
        }
    }
    Ok(looked)
}
