//! The claim: lanes locked by an open transaction, and the read of their unsent rows.

use super::connect::{Database, serial};
use super::event::{OutboxRow, column};
use super::fault::{answer, fault};
use super::reading::Reading;
use super::session::claim_settings;
use super::settle;
use super::statements::Statements;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::lane::Lane;
use crate::relay::outbox::{Claim, End, Outbox, Read, ServerId, Settled, Settlement, Slice};
use deadpool_postgres::{Object, Transaction};
use futures_util::{TryStreamExt, join};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio_postgres::IsolationLevel;
use tokio_postgres::types::{ToSql, Type};

/// One worker's connection.
pub struct PostgresOutbox {
    database: Database,
    statements: Rc<Statements>,
    settings: String,
    connection: Option<Object>,
    /// A fault made the connection doubtful: it is not used again.
    doubtful: Cell<bool>,
}

impl PostgresOutbox {
    /// A worker's way to this outbox. Connects when it is first needed.
    pub fn new(
        database: Database,
        statements: Rc<Statements>,
        takeover_timeout: Duration,
        server_version_num: i32,
    ) -> PostgresOutbox {
        let settings = claim_settings(takeover_timeout, server_version_num);
        PostgresOutbox { database, statements, settings, connection: None, doubtful: Cell::new(false) }
    }

    /// Gives a doubtful connection up for good, instead of handing it back to the pool.
    fn drop_doubtful(&mut self) {
        if self.doubtful.take() {
            self.connection.take().map(Object::take);
        }
    }
}

impl Outbox for PostgresOutbox {
    type Event = OutboxRow;
    type Claim<'a> = PostgresClaim<'a>;

    async fn claim(&mut self, lanes: &[Lane]) -> Result<PostgresClaim<'_>, Fault> {
        self.drop_doubtful();
        let connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => self.connection.insert(connection),
            _ => self.connection.insert(self.database.get().await?),
        };
        let doubtful = &self.doubtful;
        let claimed =
            lock(connection, &self.statements, &self.settings, self.database.prepares(), lanes).await;
        let (transaction, lanes, server) = claimed.inspect_err(|fault| doubt(doubtful, fault))?;
        Ok(PostgresClaim {
            transaction,
            statements: &self.statements,
            prepares: self.database.prepares(),
            lanes,
            server,
            doubtful,
            reading: None,
            hold_version: -1,
            read: 0,
            rows_max: 0,
        })
    }
}

/// Begins the transaction and locks the lanes.
async fn lock<'a>(
    connection: &'a mut Object,
    statements: &Statements,
    settings: &str,
    prepares: bool,
    lanes: &[Lane],
) -> Result<(Transaction<'a>, Vec<Lane>, ServerId), Fault> {
    const DOING: &str = "claiming lanes";
    let serial = serial(connection);
    // Before the transaction: preparing locks the relation, and nothing bounds a transaction before its settings.
    let prepared =
        if prepares { Some(answer(DOING, connection.prepare_cached(&statements.lock)).await?) } else { None };
    let begin =
        connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false);
    let transaction = answer(DOING, begin.start()).await?;
    let numbers: Vec<i16> = lanes.iter().map(|lane| lane.number()).collect();
    let rows = if let Some(statement) = prepared {
        let params: [&(dyn ToSql + Sync); 1] = [&numbers];
        let set = transaction.batch_execute(settings);
        let (set, rows) =
            answer(DOING, async { Ok(join!(set, transaction.query(&statement, &params))) }).await?;
        set.and(rows)
    } else {
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&numbers, Type::INT2_ARRAY)];
        let set = transaction.batch_execute(settings);
        let query = transaction.query_typed(&statements.lock, &params);
        let (set, rows) = answer(DOING, async { Ok(join!(set, query)) }).await?;
        set.and(rows)
    };
    let rows = rows.map_err(|error| fault(DOING, error))?;
    let mut locked = Vec::with_capacity(rows.len());
    let mut server = ServerId { connection: serial, started_us: 0, backend: 0 };
    for row in &rows {
        let read = || Ok((row.try_get::<_, i16>(0)?, row.try_get(1)?, row.try_get(2)?));
        let (lane, started_us, backend) = read().map_err(|error| fault(DOING, error))?;
        server = ServerId { connection: serial, started_us, backend };
        locked.extend(Lane::new(lane.into()));
    }
    // In the order asked for, which is the order in which their turn comes.
    let owned = lanes.iter().copied().filter(|lane| locked.contains(lane)).collect();
    Ok((transaction, owned, server))
}

fn doubt(doubtful: &Cell<bool>, fault: &Fault) {
    // A lock that stands in the way says nothing against the connection; anything else may come from what this one
    // connection remembers (a demoted server, a plan, a pooler's lost statement).
    if fault.kind != FaultKind::Contended {
        doubtful.set(true);
    }
}

/// An open claim.
pub struct PostgresClaim<'a> {
    transaction: Transaction<'a>,
    statements: &'a Statements,
    prepares: bool,
    lanes: Vec<Lane>,
    server: ServerId,
    doubtful: &'a Cell<bool>,
    reading: Option<Reading>,
    /// What the read's snapshot saw; a last slice without a row does not say.
    hold_version: i64,
    read: usize,
    rows_max: usize,
}

impl PostgresClaim<'_> {
    /// Reads up to `rows_max` rows of the open read, and drops those beyond `bytes_max` as they come in, so that
    /// memory stays bounded whatever their sizes.
    async fn slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<OutboxRow>,
    ) -> Result<Slice, tokio_postgres::Error> {
        let Some(reading) = &self.reading else { unreachable!("next_slice before read") };
        let mut stream = pin!(reading.slice(&self.transaction, rows_max).await?);
        let (mut bytes, mut cut, mut got) = (0, false, 0);
        while let Some(row) = stream.try_next().await? {
            self.hold_version = row.try_get(column::HOLD_VERSION)?;
            if row.try_get::<_, Option<i64>>(column::ID)?.is_none() {
                continue; // The one row without an event, which carries the version.
            }
            got += 1;
            cut |= bytes >= bytes_max && bytes > 0;
            if !cut {
                bytes += row.raw_size_bytes();
                rows.push(OutboxRow::new(row)?);
            }
        }
        self.read += got;
        let exhausted = reading.is_exhausted(stream.rows_affected(), got, rows_max);
        let end = match (cut || self.read >= self.rows_max, exhausted) {
            (true, _) => End::Cut,
            (false, true) => End::Complete,
            (false, false) => End::More,
        };
        if end != End::More {
            // A finished portal still holds the snapshot back.
            if let Some(reading) = self.reading.take() {
                reading.close(&self.transaction).await?;
            }
        }
        Ok(Slice { hold_version: self.hold_version, end })
    }
}

impl Claim for PostgresClaim<'_> {
    type Event = OutboxRow;

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn server(&self) -> ServerId {
        self.server
    }

    async fn read(&mut self, read: &Read) -> Result<(), Fault> {
        self.rows_max = read.rows_max;
        let opened =
            Reading::open(&self.transaction, self.statements, self.prepares, &self.lanes, read).await;
        self.reading = Some(opened.inspect_err(|fault| doubt(self.doubtful, fault))?);
        Ok(())
    }

    async fn next_slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<OutboxRow>,
    ) -> Result<Slice, Fault> {
        let before = rows.len();
        let slice = answer("reading events", self.slice(rows_max, bytes_max, rows)).await;
        let slice = slice.inspect_err(|fault| doubt(self.doubtful, fault))?;
        assert_in_order(&self.lanes, &rows[before.saturating_sub(1)..]);
        Ok(slice)
    }

    async fn keep_alive(&mut self) -> Result<(), Fault> {
        let alive = answer("keeping the claim alive", self.transaction.batch_execute("SELECT 1")).await;
        alive.inspect_err(|fault| doubt(self.doubtful, fault))
    }

    async fn settle(self, settlement: &Settlement<'_, OutboxRow>) -> Result<Settled, Fault> {
        let doubtful = self.doubtful;
        let settled = settle::settle(self.transaction, self.statements, self.prepares, settlement).await;
        settled.inspect_err(|fault| doubt(doubtful, fault))
    }

    async fn release(self) -> Result<(), Fault> {
        let doubtful = self.doubtful;
        let released = answer("releasing a claim", self.transaction.rollback()).await;
        released.inspect_err(|fault| doubt(doubtful, fault))
    }
}

/// The order of a read is the order of its plan: lanes as they were given, ids inside a lane. Everything rests on it,
/// so it is looked at each time; a violation is a bug, and ends the process before anything is published.
fn assert_in_order(lanes: &[Lane], rows: &[OutboxRow]) {
    use crate::relay::event::Event;
    let place = |row: &OutboxRow| lanes.iter().position(|lane| *lane == row.lane());
    for pair in rows.windows(2) {
        let (earlier, later) = (&pair[0], &pair[1]);
        let in_order = if earlier.lane() == later.lane() {
            earlier.id() < later.id()
        } else {
            place(earlier) < place(later)
        };
        assert!(in_order, "the claim read id {} before id {} ", earlier.id(), later.id());
    }
}
