//! Writers: connections that insert events as applications do, at a pace or at full speed, on a thread of their own.
//!
//! Each writer has keys of its own, so the events of a key are committed in the order of their numbers.

use super::error::BenchError;
use super::rows::Committed;
use super::verify::StopOnDrop;
use crate::postgres::load::Shape;
use crate::postgres::writer::Writer;
use futures_util::future::try_join_all;
use outbox_relay::config;
use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::table::TableName;
use outbox_relay::relay::failure::Fault;
use outbox_relay::relay::health::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How they write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// How many connections. Each of them has its share of the keys, so there must be as many keys.
    pub writers: u64,
    /// Rows of each transaction.
    pub rows_per_transaction: u64,
    /// Rows a second of all of them together; `None` is as fast as it goes.
    pub rows_per_second: Option<f64>,
    /// How long they write.
    pub time: Duration,
}

/// A transaction that was committed.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// The writer's number, which is that of its stream.
    pub stream: u64,
    /// Its first row, counted in the stream.
    pub first: u64,
    /// When it had to begin; without a pace, when it did.
    pub due: Instant,
    /// When it was sent.
    pub sent: Instant,
    /// When the answer to its COMMIT was here.
    pub committed: Instant,
}

/// What they wrote.
#[derive(Clone, Debug)]
pub struct Written {
    /// When they began.
    pub begun: Instant,
    /// When the last one was done.
    pub ended: Instant,
    /// Every transaction, writer by writer. Empty without a pace, when there are too many.
    pub transactions: Vec<Transaction>,
    /// How many rows each has committed.
    pub committed: Committed,
}

/// Writers at work. Dropping it lets them finish their transactions, and waits for nothing.
pub struct Writers {
    stop: StopOnDrop,
    written: Arc<AtomicU64>,
    begun: oneshot::Receiver<Instant>,
    thread: JoinHandle<Result<Written, BenchError>>,
}

impl Writers {
    /// Connects, and begins to write.
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

    /// Waits until they are connected and write, or cannot, which [`Writers::finish`] says.
    pub async fn begun(&mut self) -> Instant {
        (&mut self.begun).await.unwrap_or_else(|_| Instant::now())
    }

    /// How many rows they have committed, at any time: also while [`Writers::finish`] is waited for.
    pub fn written(&self) -> impl Fn() -> u64 + use<> {
        let written = Arc::clone(&self.written);
        move || written.load(Ordering::Acquire)
    }

    /// Waits for the end of their time. Dropping the future lets them end early.
    ///
    /// # Errors
    ///
    /// Postgres failed one of them; all have stopped then.
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

/// All of them, on their thread.
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

    /// One writer, until the time is over. How many rows it has committed, and how.
    async fn work(
        &self,
        mut writer: Writer,
        stream: u64,
        begun: Instant,
    ) -> Result<(u64, Vec<Transaction>), Fault> {
        let Work { writers, rows_per_transaction: rows, rows_per_second, time } = self.work;
        let mut transactions = Vec::new();
        for turn in 0_u64.. {
            let due = match rows_per_second {
                Some(rate) => {
                    // The schedule is that of all writers; this one has every n-th transaction of it.
                    let before = (turn * writers + stream) * rows;
                    begun + Duration::from_secs_f64(before as f64 / rate)
                }
                None => Instant::now(),
            };
            if due >= begun + time {
                break;
            }
            // One that is late begins at once: the schedule does not wait for it.
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
