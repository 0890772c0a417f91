//! Connections that use the scratch outbox as applications do: writers insert events, at a fixed pace or at full speed, on
//! a separate thread, and a snapshot is held.
//!
//! Each writer has its own keys, so the events of a key are committed in the order of their numbers.

use crate::BenchError;
use crate::load::Shape;
use crate::place::Place;
use crate::verify::{Committed, StopOnDrop};
use deadpool_postgres::Object;
use futures_util::future::try_join_all;
use outbox_relay::config;
use outbox_relay::postgres::connection::errors::fault;
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::relay::failure::PostgresFault;
use outbox_relay::relay::health::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_postgres::Statement;
use tokio_postgres::types::{ToSql, Type};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The number of connections. Each has a share of the keys, so there must be at least as many keys.
    pub writers: u64,
    pub rows_per_transaction: u64,
    /// Rows per second of all writers together. `None` means full speed.
    pub rows_per_second: Option<f64>,
    pub time: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// The number of the writer, which is the number of its stream.
    pub stream: u64,
    /// The index of its first row in the stream.
    pub first: u64,
    /// When it was due. Without a pace, when it began.
    pub due: Instant,
    pub sent: Instant,
    pub committed: Instant,
}

#[derive(Clone, Debug)]
pub struct Written {
    pub begun: Instant,
    /// When the last one had finished.
    pub ended: Instant,
    /// All transactions, writer by writer. Empty without a pace, because there would be too many.
    pub transactions: Vec<Transaction>,
    /// The number of rows that each writer has committed.
    pub committed: Committed,
}

impl Written {
    pub fn rows(&self) -> u64 {
        self.committed.0.iter().sum()
    }
}

/// Running writers. Dropping it lets them finish their transactions, without waiting for that.
pub struct Writers {
    stop: StopOnDrop,
    written: Arc<AtomicU64>,
    begun: oneshot::Receiver<Instant>,
    thread: JoinHandle<Result<Written, BenchError>>,
}

impl Writers {
    /// Connects the writers and starts writing.
    pub fn start(place: &Place, shape: &Shape, work: Work) -> Writers {
        let stop = StopOnDrop::default();
        let written = Arc::new(AtomicU64::new(0));
        let (tell_begun, begun) = oneshot::channel();
        let team = Team {
            settings: place.config.postgres.clone(),
            insert: shape.insert(&place.table()),
            work,
            stop: Arc::clone(&stop.0),
            written: Arc::clone(&written),
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime =
                runtime.map_err(|source| BenchError::System { doing: "starting the writers", source })?;
            runtime.block_on(team.write(tell_begun))
        });
        Writers { stop, written, begun, thread }
    }

    /// Waits until they are connected and write. If they cannot connect, [`Writers::finish`] returns the error.
    pub async fn begun(&mut self) -> Instant {
        (&mut self.begun).await.unwrap_or_else(|_| Instant::now())
    }

    /// The number of committed rows at any time, even while [`Writers::finish`] is waiting.
    pub fn written(&self) -> impl Fn() -> u64 + use<> {
        let written = Arc::clone(&self.written);
        move || written.load(Ordering::Acquire)
    }

    /// Waits until their time is over. Dropping the future makes them end early. If PostgreSQL fails for one of them, all
    /// stop.
    pub async fn finish(self) -> Result<Written, BenchError> {
        let Writers { stop, thread, .. } = self;
        let ended = tokio::task::spawn_blocking(|| thread.join()).await;
        drop(stop);
        match ended {
            Ok(Ok(done)) => done,
            _ => Err(BenchError::Subject("the writers panicked".to_owned())),
        }
    }
}

struct Team {
    settings: config::Postgres,
    /// The statement of [`Shape::insert`].
    insert: String,
    work: Work,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl Team {
    async fn write(&self, tell_begun: oneshot::Sender<Instant>) -> Result<Written, BenchError> {
        let writers = self.work.writers;
        let database = Database::new(&self.settings, writers as usize, Arc::new(Stats::new()))?;
        let open = |stream| Writer::open(&database, self.insert.clone(), stream, writers, 0);
        let open: Vec<Writer> = try_join_all((0..writers).map(open)).await?;
        let begun = Instant::now();
        _ = tell_begun.send(begun);
        let work = open.into_iter().zip(0..).map(|(writer, stream)| self.work(writer, stream, begun));
        let done = try_join_all(work).await?;
        let ended = Instant::now();
        let committed = Committed(done.iter().map(|(committed, _)| *committed).collect());
        let transactions = done.into_iter().flat_map(|(_, transactions)| transactions).collect();
        Ok(Written { begun, ended, transactions, committed })
    }

    /// Runs one writer until its time is over. Returns the number of committed rows, and the transactions.
    async fn work(
        &self,
        mut writer: Writer,
        stream: u64,
        begun: Instant,
    ) -> Result<(u64, Vec<Transaction>), PostgresFault> {
        let Work { writers, rows_per_transaction: rows, rows_per_second, time } = self.work;
        let mut transactions = Vec::new();
        for turn in 0_u64.. {
            let due = match rows_per_second {
                Some(rate) => {
                    // The schedule is that of all writers. This one runs every n-th transaction of it.
                    let before = (turn * writers + stream) * rows;
                    begun + Duration::from_secs_f64(before as f64 / rate)
                }
                None => Instant::now(),
            };
            if due >= begun + time {
                break;
            }
            // A late transaction begins immediately, because the schedule does not wait for it.
            tokio::time::sleep_until(due.into()).await;
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let (first, sent) = (writer.written, Instant::now());
            writer.write(rows).await.inspect_err(|_| self.stop.store(true, Ordering::Release))?;
            self.written.fetch_add(rows, Ordering::AcqRel);
            if rows_per_second.is_some() {
                transactions.push(Transaction { stream, first, due, sent, committed: Instant::now() });
            }
        }
        Ok((writer.written, transactions))
    }
}

/// The writer of one stream of rows, as [`crate::load`] describes them.
pub struct Writer {
    client: Object,
    insert: String,
    /// `None` behind a pooler that does not support prepared statements.
    statement: Option<Statement>,
    stream: i64,
    streams: i64,
    /// The number of rows of its stream that are committed.
    pub written: u64,
}

impl Writer {
    /// Connects the writer of stream `stream` of `streams`, which already has `written` rows. `insert` is the statement of
    /// [`Shape::insert`].
    pub async fn open(
        database: &Database,
        insert: String,
        stream: u64,
        streams: u64,
        written: u64,
    ) -> Result<Writer, PostgresFault> {
        let client = database.get().await?;
        let statement = match database.prepares() {
            true => Some(client.prepare(&insert).await.map_err(|error| fault("preparing an insert", error))?),
            false => None,
        };
        let (stream, streams) = (stream as i64, streams as i64);
        Ok(Writer { client, insert, statement, stream, streams, written })
    }

    /// Inserts its next rows in one transaction. Returns when they are committed. If the server fails, it is unknown
    /// whether they are.
    pub async fn write(&mut self, rows: u64) -> Result<(), PostgresFault> {
        let (first, last) = (self.written as i64, (self.written + rows) as i64 - 1);
        let numbers: [&(dyn ToSql + Sync); 4] = [&first, &last, &self.stream, &self.streams];
        let inserted = match &self.statement {
            Some(statement) => self.client.execute(statement, &numbers).await,
            None => {
                let typed = numbers.map(|number| (number, Type::INT8));
                self.client.execute_typed(&self.insert, &typed).await
            }
        };
        inserted.map_err(|error| fault("inserting events", error))?;
        self.written += rows;
        Ok(())
    }
}

/// A transaction that keeps its snapshot, as a backup or a report does. Vacuum cannot remove rows that die after it.
pub struct Snapshot(Option<Object>);

impl Snapshot {
    pub async fn take(database: &Database) -> Result<Snapshot, PostgresFault> {
        const SQL: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
                           SET LOCAL idle_in_transaction_session_timeout = 0;
                           SELECT 1";
        let client = database.get().await?;
        let taken = client.batch_execute(SQL).await.map_err(|error| fault("taking a snapshot", error));
        let snapshot = Snapshot(Some(client));
        taken.map(|()| snapshot)
    }

    /// Releases the snapshot. Fails if the server has already ended the transaction, so that the measurement is invalid.
    pub async fn end(mut self) -> Result<(), PostgresFault> {
        let Some(client) = self.0.take() else { return Ok(()) };
        let ended = client.batch_execute("SELECT 1; COMMIT").await;
        if ended.is_err() {
            drop(Object::take(client));
        }
        ended.map_err(|error| fault("ending a held snapshot", error))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // Not returned to the pool with its open transaction.
        self.0.take().map(Object::take);
    }
}
