//! The claim: lanes locked by an open transaction, and the read of their unsent rows.

use crate::connection::errors::{answer, fault, unavailable};
use crate::connection::exec::{ClaimTransaction, FIRST, begin, claim_settings, examine};
use crate::connection::pool::{Database, Ending, serial};
use crate::cycle::read::{NewRows, READING, Reading, Values};
use crate::cycle::row::{OutboxRow, column};
use crate::cycle::statements::Statements;
use crate::cycle::{read, settle};
use crate::schema::{identity, outbox};
use deadpool_postgres::Object;
use futures_util::{TryStreamExt, join};
use relay::failure::PostgresFault;
use relay::lanes::Lane;
use relay::outbox::{
    Claim, Epoch, Event, Head, Outbox, ReadEnd, ReadRequest, RowSelection, Search, SearchResult, ServerId,
    Settled, Settlement, Slice,
};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio_postgres::{Error, Row};

const LOCKING: &str = "claiming lanes";

/// A worker's access to the outbox, over one connection.
pub struct PostgresOutbox {
    database: Database,
    statements: Rc<Statements>,
    takeover_timeout: Duration,
    /// BEGIN with the settings of a claim, and the settings alone, for the server of the connection.
    begin: String,
    settings: String,
    connection: Option<Object>,
    discard: Discard,
    /// A changed type of the payload column may have caused the fault.
    recheck_payload_type: bool,
}

impl PostgresOutbox {
    /// For this outbox. Connects on first use.
    pub fn new(database: Database, statements: Rc<Statements>, takeover_timeout: Duration) -> PostgresOutbox {
        let discard = Discard { due: Cell::new(false), ending: database.ending() };
        PostgresOutbox {
            database,
            statements,
            takeover_timeout,
            begin: String::new(),
            settings: String::new(),
            connection: None,
            discard,
            recheck_payload_type: false,
        }
    }

    /// Connects unless there is a usable connection. A discarded one is closed, not returned to the pool.
    async fn connect(&mut self) -> Result<(), PostgresFault> {
        if self.discard.due.take() {
            self.connection.take().map(Object::take);
            self.recheck_payload_type = true;
        }
        let open = self.connection.take().filter(|connection| !connection.is_closed());
        let is_new = open.is_none();
        let connection = match open {
            Some(connection) => connection,
            None => self.database.get().await?,
        };
        if let Err(fault) = self.check_connection(&connection, is_new).await {
            drop(Object::take(connection)); // an answer may still be outstanding
            return Err(fault);
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Checks the cluster of a new connection, and the type of the payload column if it may have changed.
    async fn check_connection(&mut self, connection: &Object, is_new: bool) -> Result<(), PostgresFault> {
        if is_new {
            // A new connection may lead to a copy, whose rows the original publishes. The process ends soon after.
            if !identity::is_recorded(connection, &self.statements.table).await? {
                let message = "this is another PostgreSQL cluster than the recorded one";
                return Err(unavailable("claiming events", message));
            }
            let settings = claim_settings(self.takeover_timeout, self.database.server_version_num());
            self.begin = begin("READ WRITE", &settings);
            self.settings = format!("{FIRST}; {settings}");
        }
        if !self.recheck_payload_type {
            return Ok(());
        }
        // The statements depend on the type of the payload column, which can change while the relay runs.
        let doing = "checking the type of the payload column";
        let payload = examine(connection, outbox::payload_type(connection, &self.statements.table));
        let payload = answer(doing, payload).await?;
        if let Some(payload) = payload.filter(|payload| *payload != self.statements.payload) {
            tracing::info!("type of the payload column changed to {payload}");
            self.statements = Rc::new(self.statements.with_payload(payload));
        }
        self.recheck_payload_type = false;
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
    ) -> Result<PostgresClaim<'_>, PostgresFault> {
        self.connect().await?;
        let Some(connection) = &mut self.connection else { unreachable!("it has just connected") };
        let discard = &self.discard;
        self.database.count_transaction();
        let serial = serial(connection);
        let prepares = self.database.prepares();
        let (transaction, opening) = match promptly {
            None if prepares => {
                let begun = answer(LOCKING, ClaimTransaction::begin(connection)).await;
                (discard.unless_usable(begun)?, &self.settings)
            }
            _ => (ClaimTransaction::manual(connection, prepares), &self.begin),
        };
        let locked = lock(&transaction, &self.statements, opening, lanes, promptly).await;
        let (rows, reading) = discard.unless_usable(locked)?;
        let owned = owned(lanes, serial, &rows).map_err(|error| fault(LOCKING, error));
        let (lanes, server) = discard.unless_usable(owned)?;
        Ok(PostgresClaim {
            transaction,
            statements: &self.statements,
            prepares,
            lanes,
            server,
            discard,
            reading,
            hold_version: -1,
            epoch: Epoch::NONE,
            read: 0,
            rows_max: promptly.map_or(0, |read| read.rows_max),
            in_order: true,
        })
    }

    fn reads_in_slices(&self) -> bool {
        self.database.prepares()
    }
}

pub struct PostgresClaim<'a> {
    transaction: ClaimTransaction<'a>,
    statements: &'a Statements,
    prepares: bool,
    lanes: Vec<Lane>,
    server: ServerId,
    discard: &'a Discard,
    reading: Option<Reading>,
    /// As of the read's snapshot, from the latest row: a slice can be empty.
    hold_version: i64,
    epoch: Epoch,
    read: usize,
    rows_max: usize,
    /// The rows arrive lane by lane, by id. False if the read names its rows, which then arrive in the order of the request.
    in_order: bool,
}

impl PostgresClaim<'_> {
    fn check_payload_type(&self, rows: &[OutboxRow]) -> Result<(), PostgresFault> {
        if rows.first().is_some_and(|row| row.payload_type != Some(self.statements.payload)) {
            self.discard.due.set(true);
            return Err(unavailable(READING, "the type of the payload column has changed"));
        }
        Ok(())
    }

    /// Reads up to `rows_max` rows of the open read. Drops those beyond `bytes_max` on arrival, to limit memory.
    async fn slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<OutboxRow>,
    ) -> Result<Slice, Error> {
        let Some(reading) = self.reading.take() else { unreachable!("next_slice before read") };
        let (stream, portal) = match reading {
            Reading::Whole(rows) => (rows, None),
            Reading::Portal(portal) => (self.transaction.next_rows(&portal, rows_max).await?, Some(portal)),
        };
        let (whole, mut stream) = (portal.is_none(), pin!(stream));
        let (mut bytes, mut cut, mut got) = (0, false, 0);
        while let Some(row) = stream.try_next().await? {
            self.hold_version = row.try_get(column::HOLD_VERSION)?;
            self.epoch = row.try_get::<_, i64>(column::EPOCH)?.into();
            if row.try_get::<_, Option<i64>>(column::ID)?.is_none() {
                continue; // a row without an event, which only has the versions
            }
            got += 1;
            cut |= bytes >= bytes_max && bytes > 0;
            if !cut {
                let size = row.raw_size_bytes();
                let row = OutboxRow::new(row)?;
                // A read that was sent together with the lock also returns lanes that another session had locked.
                if !whole || self.lanes.contains(&row.lane()) {
                    bytes += size;
                    rows.push(row);
                }
            }
        }
        self.read += got;
        let exhausted = whole || stream.rows_affected().is_some();
        let end = match (cut || self.read >= self.rows_max, exhausted) {
            (true, _) => ReadEnd::Cut,
            (false, true) => ReadEnd::Complete,
            (false, false) => ReadEnd::More,
        };
        // A finished portal still keeps the snapshot. Dropping it sends Close without waiting.
        self.reading = portal.filter(|_| end == ReadEnd::More).map(Reading::Portal);
        Ok(Slice { hold_version: self.hold_version, epoch: self.epoch, end })
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

    async fn read(&mut self, read: &ReadRequest) -> Result<(), PostgresFault> {
        self.rows_max = read.rows_max;
        self.in_order = read.rows == RowSelection::Pending;
        if let Some(Reading::Whole(rows)) = self.reading.take() {
            // Its rows are not needed, but if it failed, only its answer contains the reason.
            let drained = rows.try_for_each(|_| std::future::ready(Ok(())));
            self.discard.unless_usable(answer(READING, drained).await)?;
        }
        let opened = Reading::open(&self.transaction, self.statements, read).await;
        self.reading = Some(self.discard.unless_usable(opened)?);
        Ok(())
    }

    async fn next_slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<OutboxRow>,
    ) -> Result<Slice, PostgresFault> {
        let before = rows.len();
        let slice = answer(READING, self.slice(rows_max, bytes_max, rows)).await;
        let slice = self.discard.unless_usable(slice)?;
        self.check_payload_type(&rows[before..])?;
        if self.in_order {
            assert_in_order(&self.lanes, &rows[before.saturating_sub(1)..]);
        }
        Ok(slice)
    }

    async fn head(&mut self, read: &ReadRequest) -> Result<Head<OutboxRow>, PostgresFault> {
        self.reading = None; // as in `release`
        self.discard.unless_usable(read::head(&self.transaction, self.statements, read).await)
    }

    async fn read_on(
        &mut self,
        search: &Search,
        rows: &mut Vec<OutboxRow>,
    ) -> Result<SearchResult, PostgresFault> {
        if !self.prepares {
            // Parsing and planning the statement for every read would cost more than claims do.
            return Ok(SearchResult {
                hold_version: search.hold_version,
                epoch: search.epoch,
                ids: Vec::new(),
                cut: true,
            });
        }
        let PostgresClaim { transaction, statements, lanes, .. } = &*self;
        let found = NewRows { transaction, statements, lanes, search }.read(rows).await;
        let found = self.discard.unless_usable(found)?;
        self.check_payload_type(rows)?;
        Ok(found)
    }

    async fn record_sent(&mut self, sent: &[&OutboxRow]) -> Result<bool, PostgresFault> {
        self.discard.unless_usable(settle::record_sent(&self.transaction, self.statements, sent).await)
    }

    async fn keep_alive(&mut self) -> Result<(), PostgresFault> {
        self.discard.unless_usable(self.transaction.run("keeping the claim alive", "SELECT 1").await)
    }

    async fn settle(self, settlement: &Settlement<'_, OutboxRow>) -> Result<Settled, PostgresFault> {
        self.discard.unless_usable(settle::settle(self.transaction, self.statements, settlement).await)
    }

    async fn release(self) -> Result<(), PostgresFault> {
        drop(self.reading); // unread rows would block the answer to ROLLBACK
        self.discard.unless_usable(answer("releasing a claim", self.transaction.roll_back()).await)
    }
}

/// The plan of the read determines its order: lanes as requested, then ids. The order guarantee depends on it, so a
/// violation ends the process before anything is published.
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

/// Sends what opens the transaction, locks the lanes and begins to read, in one round trip if the statements are prepared already.
/// The server runs the statements in the order in which they are first polled, so the read's snapshot is still taken after the
/// locks.
async fn lock(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    opening: &str,
    lanes: &[Lane],
    read: Option<&ReadRequest>,
) -> Result<(Vec<Row>, Option<Reading>), PostgresFault> {
    let client = transaction.client();
    let opened = client.batch_execute(opening);
    let numbers: Vec<i16> = lanes.iter().map(|lane| lane.number()).collect();
    let locked = async {
        // Prepare both first, or the read could be sent before the lock.
        let lock = transaction.ready(&statements.queries.lock).await?;
        let read = match read {
            Some(read) => {
                let statement = transaction.ready(read::sql(statements, read)).await?;
                Some((statement, Values::new(statements, read)))
            }
            None => None,
        };
        let params = params![numbers => INT2_ARRAY];
        let rows = lock.query(client, &params);
        let reading = async {
            match &read {
                Some((statement, values)) => {
                    let rows = statement.rows(client, &values.typed()).await?;
                    Ok(Some(Reading::Whole(rows)))
                }
                None => Ok(None),
            }
        };
        let (rows, reading) = join!(rows, reading);
        rows.and_then(|rows| reading.map(|reading| (rows, reading)))
    };
    let (opened, locked) = answer(LOCKING, async { Ok(join!(opened, locked)) }).await?;
    opened.and(locked).map_err(|error| fault(LOCKING, error))
}

/// The locked lanes, in the requested order, and the server.
fn owned(lanes: &[Lane], connection: u64, rows: &[Row]) -> Result<(Vec<Lane>, ServerId), Error> {
    let mut locked = Vec::with_capacity(rows.len());
    let mut server = ServerId { connection, started_us: 0, backend: 0 };
    for row in rows {
        locked.extend(Lane::new(row.try_get::<_, i16>(0)?.into()));
        server = ServerId { connection, started_us: row.try_get(1)?, backend: row.try_get(2)? };
    }
    Ok((lanes.iter().copied().filter(|lane| locked.contains(lane)).collect(), server))
}

/// Whether the connection must not be used again.
#[derive(Default)]
struct Discard {
    due: Cell<bool>,
    ending: Ending,
}

impl Discard {
    /// Discards the connection unless another session's lock or the statement timeout caused the fault. The cause may be the state
    /// of this connection: a demoted server, a stale plan, or a prepared statement that a pooler lost. Adds the reason for which
    /// the server ended the session to the fault if the connection is closed.
    fn unless_usable<T>(&self, done: Result<T, PostgresFault>) -> Result<T, PostgresFault> {
        done.map_err(|fault| {
            if !fault.kind.keeps_connection() {
                self.due.set(true);
            }
            self.ending.explain(fault)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::failure::FaultKind;

    #[test]
    fn only_a_lock_of_another_session_or_a_timeout_keeps_the_connection() {
        let discard = Discard::default();
        for kind in [FaultKind::Contended, FaultKind::Unavailable, FaultKind::Refused, FaultKind::TimedOut] {
            let fault = PostgresFault { kind, doing: "testing", message: String::new() };
            assert!(discard.unless_usable::<()>(Err(fault)).is_err());
            let keeps = [FaultKind::Contended, FaultKind::TimedOut].contains(&kind);
            assert_eq!(discard.due.take(), !keeps, "{kind:?}");
            assert!(!discard.due.take());
        }
    }
}
