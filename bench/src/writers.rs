//! Writers: connections that insert events as applications do, at a fixed pace or at full speed, on a separate thread.
//!
//! Each writer has its own keys, so the events of a key are committed in the order of their numbers.

use crate::checking::rows::Committed;
use crate::checking::verify::StopOnDrop;
use crate::error::BenchError;
use crate::postgres::load::Shape;
use crate::postgres::writer::Writer;
use futures_util::future::try_join_all;
use outbox_relay::config;
use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::table::TableName;
use outbox_relay::relay::failure::PostgresFault;
use outbox_relay::relay::health::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The work of the writers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The number of connections. Each has a share of the keys, so there must be at least as many keys.
    pub writers: u64,
    /// Rows per transaction.
    pub rows_per_transaction: u64,
    /// Rows per second of all writers together. `None` means full speed.
    pub rows_per_second: Option<f64>,
    /// How long they write.
    pub time: Duration,
}

/// A committed transaction.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// The number of the writer, which is the number of its stream.
    pub stream: u64,
    /// The index of its first row in the stream.
    pub first: u64,
    /// When it was due. Without a pace, when it began.
    pub due: Instant,
    /// When it was sent.
    pub sent: Instant,
    /// When the answer to its COMMIT arrived.
    pub committed: Instant,
}

/// What the writers wrote.
#[derive(Clone, Debug)]
pub struct Written {
    /// When they began.
    pub begun: Instant,
    /// When the last one had finished.
    pub ended: Instant,
    /// All transactions, writer by writer. Empty without a pace, because there would be too many.
    pub transactions: Vec<Transaction>,
    /// The number of rows that each writer has committed.
    pub committed: Committed,
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
    pub fn start(settings: &config::Postgres, table: &TableName, shape: &Shape, work: Work) -> Writers {
        let stop = StopOnDrop::default();
        let written = Arc::new(AtomicU64::new(0));
        let (tell_begun, begun) = oneshot::channel();
        let team = Team {
            settings: settings.clone(),
            table: table.clone(),
            shape: *shape,
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

    /// Waits until their time is over. Dropping the future makes them end early.
    ///
    /// # Errors
    ///
    /// If PostgreSQL failed for one of them. All of them have stopped then.
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

/// All writers, on their thread.
struct Team {
    settings: config::Postgres,
    table: TableName,
    shape: Shape,
    work: Work,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl Team {
    async fn write(&self, tell_begun: oneshot::Sender<Instant>) -> Result<Written, BenchError> {
        let writers = self.work.writers;
        let database = Database::new(&self.settings, writers as usize, Arc::new(Stats::new()))?;
        let open = |stream| Writer::open(&database, &self.table, &self.shape, (stream, writers));
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
            let (first, sent) = (writer.written(), Instant::now());
            writer.write(rows).await.inspect_err(|_| self.stop.store(true, Ordering::Release))?;
            self.written.fetch_add(rows, Ordering::AcqRel);
            if rows_per_second.is_some() {
                transactions.push(Transaction { stream, first, due, sent, committed: Instant::now() });
            }
        }
        Ok((writer.written(), transactions))
    }
}
