//! The claim: lanes locked by an open transaction, and the read of their unsent rows.

use crate::postgres::connection::connect::{Database, serial};
use crate::postgres::connection::fault::{answer, fault, unavailable};
use crate::postgres::connection::session::claim_settings;
use crate::postgres::cycle::event::{OutboxRow, column};
use crate::postgres::cycle::head;
use crate::postgres::cycle::open::{Open, Plain};
use crate::postgres::cycle::reading::{self, Reading, Values};
use crate::postgres::cycle::settle;
use crate::postgres::cycle::statements::Statements;
use crate::postgres::schema::check;
use crate::relay::event::Event;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::lane::Lane;
use crate::relay::outbox::{
    Claim, Head, Outbox, ReadEnd, ReadRequest, Rows, ServerId, Settled, Settlement, Slice,
};
use deadpool_postgres::{Object, Transaction};
use futures_util::{TryStreamExt, join};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, IsolationLevel, Row, Statement};

/// One worker's connection.
pub struct PostgresOutbox {
    database: Database,
    statements: Rc<Statements>,
    settings: String,
    connection: Option<Object>,
    /// A fault made the connection doubtful: it is not used again.
    doubtful: Cell<bool>,
    /// The fault may have come from a payload column of another type than before.
    type_unsure: bool,
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
        PostgresOutbox {
            database,
            statements,
            settings,
            connection: None,
            doubtful: Cell::new(false),
            type_unsure: false,
        }
    }

    /// Connects, if there is no good connection. A doubtful one is closed instead of going back to the pool.
    async fn connect(&mut self) -> Result<(), Fault> {
        if self.doubtful.take() {
            self.connection.take().map(Object::take);
            self.type_unsure = true;
        }
        let connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => self.database.get().await?,
        };
        if self.type_unsure {
            if let Err(fault) = self.check_payload_type(&connection).await {
                drop(Object::take(connection)); // an answer may still be on its way
                return Err(fault);
            }
            self.type_unsure = false;
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Sizes are measured, and dead letters written, by the type of the payload column. It can change while the relay runs.
    async fn check_payload_type(&mut self, connection: &Object) -> Result<(), Fault> {
        let doing = "checking the type of the payload column";
        let payload = answer(doing, check::payload_type(connection, self.statements.table())).await?;
        if let Some(payload) = payload.filter(|payload| *payload != self.statements.payload) {
            tracing::info!("type of the payload column changed to {payload}");
            self.statements = Rc::new(self.statements.with_payload(payload));
        }
        Ok(())
    }
}

impl Outbox for PostgresOutbox {
    type Event = OutboxRow;
    type Claim<'a> = PostgresClaim<'a>;

    async fn claim(
        &mut self,
        lanes: &[Lane],
        promptly: Option<&ReadRequest>,
    ) -> Result<PostgresClaim<'_>, Fault> {
        self.connect().await?;
        let Some(connection) = &mut self.connection else { unreachable!("it has just connected") };
        let (doubtful, prepares) = (&self.doubtful, self.database.prepares());
        self.database.count_transaction();
        let serial = serial(connection);
        let locking = Locking { statements: &self.statements, settings: &self.settings, prepares, lanes };
        let (open, rows, reading) = match promptly {
            None => {
                let locked = locking.lock(connection).await;
                let (transaction, rows) = locked.inspect_err(|fault| doubt(doubtful, fault))?;
                (Open::Guarded(transaction), rows, None)
            }
            Some(read) => {
                let locked = locking.lock_and_read(connection, read).await;
                let (plain, rows, reading) = locked.inspect_err(|fault| doubt(doubtful, fault))?;
                (Open::Plain(plain), rows, Some(reading))
            }
        };
        let owned = owned(lanes, serial, &rows).map_err(|error| fault(LOCKING, error));
        let (lanes, server) = owned.inspect_err(|fault| doubt(doubtful, fault))?;
        Ok(PostgresClaim {
            open,
            statements: &self.statements,
            prepares,
            lanes,
            server,
            doubtful,
            reading,
            hold_version: -1,
            basis: -1,
            read: 0,
            rows_max: promptly.map_or(0, |read| read.rows_max),
            in_order: true,
        })
    }
}

const LOCKING: &str = "claiming lanes";

/// Begins the transaction and locks the lanes.
struct Locking<'a> {
    statements: &'a Statements,
    settings: &'a str,
    prepares: bool,
    lanes: &'a [Lane],
}

impl Locking<'_> {
    /// Before the transaction: preparing locks the relation, and nothing bounds a transaction before its settings.
    async fn prepare(&self, connection: &Object, sql: &str) -> Result<Option<Statement>, Fault> {
        if !self.prepares {
            return Ok(None);
        }
        answer(LOCKING, connection.prepare_cached(sql)).await.map(Some)
    }

    async fn query(&self, client: &Client, prepared: Option<&Statement>) -> Result<Vec<Row>, Error> {
        let numbers: Vec<i16> = self.lanes.iter().map(|lane| lane.number()).collect();
        match prepared {
            Some(statement) => client.query(statement, &[&numbers]).await,
            None => client.query_typed(&self.statements.lock, &[(&numbers, Type::INT2_ARRAY)]).await,
        }
    }

    async fn lock<'b>(&self, connection: &'b mut Object) -> Result<(Transaction<'b>, Vec<Row>), Fault> {
        let prepared = self.prepare(connection, &self.statements.lock).await?;
        let begin =
            connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false);
        let transaction = answer(LOCKING, begin.start()).await?;
        let set = transaction.batch_execute(self.settings);
        let rows = self.query(transaction.client(), prepared.as_ref());
        let (set, rows) = answer(LOCKING, async { Ok(join!(set, rows)) }).await?;
        let rows = set.and(rows).map_err(|error| fault(LOCKING, error))?;
        Ok((transaction, rows))
    }

    /// And reads, all in one round trip. The server takes the statements one after the other, in the order in which
    /// they are first polled: so the read's snapshot is younger than the locks here too.
    async fn lock_and_read<'b>(
        &self,
        connection: &'b Object,
        read: &ReadRequest,
    ) -> Result<(Plain<'b>, Vec<Row>, Reading), Fault> {
        let lock = self.prepare(connection, &self.statements.lock).await?;
        let sql = reading::sql(self.statements, read);
        let prepared = self.prepare(connection, sql).await?;
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {}", self.settings);
        let values = Values::new(self.statements, self.lanes, read);
        let plain = Plain::new(connection);
        let begun = connection.batch_execute(&begin);
        let rows = self.query(connection, lock.as_ref());
        let reading = Reading::whole(connection, prepared.as_ref(), sql, &values);
        let (begun, rows, reading) = answer(LOCKING, async { Ok(join!(begun, rows, reading)) }).await?;
        let both = begun.and(rows).and_then(|rows| reading.map(|reading| (plain, rows, reading)));
        both.map_err(|error| fault(LOCKING, error))
    }
}

/// What a lock answered, in the order asked for, which is the order in which their turn comes.
fn owned(lanes: &[Lane], connection: u64, rows: &[Row]) -> Result<(Vec<Lane>, ServerId), Error> {
    let mut locked = Vec::with_capacity(rows.len());
    let mut server = ServerId { connection, started_us: 0, backend: 0 };
    for row in rows {
        locked.extend(Lane::new(row.try_get::<_, i16>(0)?.into()));
        server = ServerId { connection, started_us: row.try_get(1)?, backend: row.try_get(2)? };
    }
    Ok((lanes.iter().copied().filter(|lane| locked.contains(lane)).collect(), server))
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
    open: Open<'a>,
    statements: &'a Statements,
    prepares: bool,
    lanes: Vec<Lane>,
    server: ServerId,
    doubtful: &'a Cell<bool>,
    reading: Option<Reading>,
    /// What the read's snapshot saw; a last slice without a row does not say.
    hold_version: i64,
    basis: i64,
    read: usize,
    rows_max: usize,
    /// The rows come lane by lane and by id. If the read names its rows, they come in the order of their names.
    in_order: bool,
}

impl PostgresClaim<'_> {
    /// Reads up to `rows_max` rows of the open read, and drops those beyond `bytes_max` as they come in, so that
    /// memory stays bounded whatever their sizes.
    async fn slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<OutboxRow>,
    ) -> Result<Slice, Error> {
        let Some(reading) = self.reading.take() else { unreachable!("next_slice before read") };
        let (stream, reading) = reading.slice(&self.open, rows_max).await?;
        let (whole, mut stream) = (reading.is_none(), pin!(stream));
        let (mut bytes, mut cut, mut got) = (0, false, 0);
        while let Some(row) = stream.try_next().await? {
            self.hold_version = row.try_get(column::HOLD_VERSION)?;
            self.basis = row.try_get(column::BASIS)?;
            if row.try_get::<_, Option<i64>>(column::ID)?.is_none() {
                continue; // The one row without an event, which carries the version.
            }
            got += 1;
            cut |= bytes >= bytes_max && bytes > 0;
            if !cut {
                let size = row.raw_size_bytes();
                let row = OutboxRow::new(row)?;
                // One that was sent along asked for lanes that turned out to be somebody else's, too.
                if !whole || self.lanes.contains(&row.lane()) {
                    bytes += size;
                    rows.push(row);
                }
            }
        }
        self.read += got;
        let completed = stream.rows_affected();
        let exhausted = reading.as_ref().is_none_or(|reading| reading.is_exhausted(completed, got, rows_max));
        let end = match (cut || self.read >= self.rows_max, exhausted) {
            (true, _) => ReadEnd::Cut,
            (false, true) => ReadEnd::Complete,
            (false, false) => ReadEnd::More,
        };
        if end != ReadEnd::More {
            // A finished portal still holds the snapshot back.
            if let Some(reading) = reading {
                reading.close(&self.open).await?;
            }
        } else {
            self.reading = reading;
        }
        Ok(Slice { hold_version: self.hold_version, basis: self.basis, end })
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

    async fn read(&mut self, read: &ReadRequest) -> Result<(), Fault> {
        self.rows_max = read.rows_max;
        self.in_order = read.rows == Rows::Pending;
        if let Some(Reading::Whole(rows)) = self.reading.take() {
            // Its rows are not wanted any more. If it failed, the transaction has failed, and only its answer says why.
            let drained = answer("reading events", rows.try_for_each(|_| std::future::ready(Ok(())))).await;
            drained.inspect_err(|fault| doubt(self.doubtful, fault))?;
        }
        let opened = Reading::open(&self.open, self.statements, self.prepares, &self.lanes, read).await;
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
        if rows[before..].first().is_some_and(|row| row.payload_type() != Some(self.statements.payload)) {
            self.doubtful.set(true);
            return Err(unavailable("reading events", "the type of the payload column has changed"));
        }
        if self.in_order {
            assert_in_order(&self.lanes, &rows[before.saturating_sub(1)..]);
        }
        Ok(slice)
    }

    async fn head(&mut self, read: &ReadRequest) -> Result<Head<OutboxRow>, Fault> {
        self.reading = None; // as in `release`
        let looked = head::look(&self.open, self.statements, self.prepares, &self.lanes, read).await;
        looked.inspect_err(|fault| doubt(self.doubtful, fault))
    }

    async fn keep_alive(&mut self) -> Result<(), Fault> {
        let alive = answer("keeping the claim alive", self.open.client().batch_execute("SELECT 1")).await;
        alive.inspect_err(|fault| doubt(self.doubtful, fault))
    }

    async fn settle(self, settlement: &Settlement<'_, OutboxRow>) -> Result<Settled, Fault> {
        let doubtful = self.doubtful;
        let settled = settle::settle(self.open, self.statements, self.prepares, settlement).await;
        settled.inspect_err(|fault| doubt(doubtful, fault))
    }

    async fn release(self) -> Result<(), Fault> {
        let doubtful = self.doubtful;
        drop(self.reading); // rows of it that nobody takes would be in the way of the answer
        let released = answer("releasing a claim", self.open.roll_back()).await;
        released.inspect_err(|fault| doubt(doubtful, fault))
    }
}

/// The order of a read is the order of its plan: lanes as they were given, ids inside a lane. Everything rests on it,
/// so it is looked at each time; a violation is a bug, and ends the process before anything is published.
fn assert_in_order(lanes: &[Lane], rows: &[OutboxRow]) {
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
