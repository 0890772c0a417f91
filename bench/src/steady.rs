//! A steady rate: rows are inserted at a pace, and a consumer beside sees how soon each arrives.
//!
//! Writers and consumer are threads of this process, so that one clock measures both ends. The pace is a schedule: what
//! arrives late does not delay the next row, and a writer that cannot keep it is reported, not hidden.

use super::checker::Verdict;
use super::error::BenchError;
use super::latency::Latency;
use super::place::{Place, Route};
use super::rows;
use super::subject::Subject;
use super::usage::{Meter, Party, Usage};
use super::verify::{self, StopOnDrop};
use super::writers::{Work, Writers, Written};
use crate::kafka::consume::Consumer;
use crate::postgres::load::Shape;
use outbox_relay::config;
use outbox_relay::relay::failure::Failure;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Connections that insert. Enough that none of them waits for its own commit.
const WRITERS: u64 = 16;
/// Transactions a second are not more than this; above it they have several rows.
const TRANSACTIONS_PER_SECOND_MAX: u64 = 1_000;
/// After the last commit, everything has to arrive within this time.
const ARRIVE_WITHIN: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(50);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Rows a second.
    pub rows_per_second: u64,
    /// Counts for nothing.
    pub warm_up: Duration,
    /// What counts.
    pub time: Duration,
}

/// What it was like.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// Rows a second that were asked for.
    pub rows_per_second: u64,
    /// Rows of a transaction.
    pub rows_per_transaction: u64,
    /// Rows a second that were committed.
    pub committed_rows_per_second: f64,
    /// How much later than its schedule a transaction began. If that is much, the writers could not keep the pace: the
    /// machine was busy, and the latency is that of a busy machine.
    pub writer_late: Latency,
    /// How long a transaction took from its first byte to the answer of its COMMIT.
    pub commit: Latency,
    /// From the answer to COMMIT until the consumer had the record, for each row.
    pub latency: Latency,
    /// What the parties used: the subject first, at the end the measuring itself, writers and consumer.
    pub usage: Vec<Usage>,
    /// What arrived.
    pub verdict: Verdict,
}

impl Pace {
    fn work(&self, shape: &Shape) -> Work {
        Work {
            writers: WRITERS.min(shape.keys),
            rows_per_transaction: self.rows_per_second.div_ceil(TRANSACTIONS_PER_SECOND_MAX),
            rows_per_second: Some(self.rows_per_second as f64),
            time: self.warm_up + self.time,
        }
    }
}

/// Measures a subject that runs. The outbox has to be empty, and the topics, too.
///
/// # Errors
///
/// The subject ends, a row does not arrive within a minute, or Postgres or Kafka fails.
pub async fn measure(
    place: &Place,
    route: &Route,
    subject: &mut impl Subject,
    shape: &Shape,
    pace: &Pace,
) -> Result<Steady, BenchError> {
    let mut consuming = Consuming::start(&place.config().kafka, route).await?;
    let mut parties = vec![subject.party()];
    parties.extend(place.parties().visible());
    parties.push(Party::this_process("bench"));
    let meter = Meter::start(parties);
    let mut writers = Writers::start(&place.config().postgres, &place.table(), shape, pace.work(shape));
    let begun = writers.begun().await;
    tokio::time::sleep_until((begun + pace.warm_up).into()).await;
    let (began, before) = (meter.read(), writers.written()());
    let written = writers.finish().await?;
    let ended = meter.read();
    let rows: u64 = written.committed.0.iter().sum();
    consuming.wait_for(rows, subject).await?;
    let arrived = consuming.finish().await?;
    let usage = meter.used(&began, &ended, rows - before);
    drop(meter);
    let verdict = verify::read(&place.config().kafka, route, shape, &written.committed).await?;
    Ok(summary(pace, pace.work(shape).rows_per_transaction, &written, &arrived, usage, verdict))
}

fn summary(
    pace: &Pace,
    rows: u64,
    written: &Written,
    arrived: &[(u64, Instant)],
    usage: Vec<Usage>,
    verdict: Verdict,
) -> Steady {
    let streams = written.committed.0.len() as u64;
    let most = written.committed.0.iter().copied().max().unwrap_or(0);
    let mut first: Vec<Option<Instant>> = vec![None; (most * streams) as usize];
    for (number, at) in arrived {
        if let Some(known) = first.get_mut(*number as usize) {
            *known = Some(known.map_or(*at, |known| known.min(*at)));
        }
    }
    let (mut latencies, mut late, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    let counts = written.begun + pace.warm_up;
    for transaction in written.transactions.iter().filter(|transaction| transaction.due >= counts) {
        late.push(transaction.sent.saturating_duration_since(transaction.due));
        commits.push(transaction.committed - transaction.sent);
        let numbers =
            (transaction.first..transaction.first + rows).map(|row| transaction.stream + streams * row);
        let arrivals = numbers.filter_map(|number| first[number as usize]);
        // It may arrive before its writer hears of its own COMMIT: no sooner than at once.
        latencies.extend(arrivals.map(|at| at.saturating_duration_since(transaction.committed)));
    }
    let elapsed = written.ended.saturating_duration_since(counts).max(pace.time).as_secs_f64();
    Steady {
        rows_per_second: pace.rows_per_second,
        rows_per_transaction: rows,
        committed_rows_per_second: (late.len() as u64 * rows) as f64 / elapsed,
        writer_late: Latency::of(late),
        commit: Latency::of(commits),
        latency: Latency::of(latencies),
        usage,
        verdict,
    }
}

/// The consumer's thread.
struct Consuming {
    stop: StopOnDrop,
    arrivals: mpsc::UnboundedReceiver<(u64, Instant)>,
    arrived: Vec<(u64, Instant)>,
    ended: oneshot::Receiver<Result<(), Failure>>,
}

impl Consuming {
    /// Returns when it reads.
    async fn start(kafka: &config::Kafka, route: &Route) -> Result<Consuming, BenchError> {
        let stop = StopOnDrop::default();
        // Bounded by the rows of the measurement.
        let (tell, arrivals) = mpsc::unbounded_channel();
        let (tell_ended, ended) = oneshot::channel();
        let (tell_ready, ready) = oneshot::channel();
        let (kafka, topics, stopped) = (kafka.clone(), route.topics.clone(), Arc::clone(&stop.0));
        std::thread::spawn(move || {
            let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
            let read = || {
                let consumer = Consumer::of(&kafka, &topics)?;
                _ = tell_ready.send(());
                while !stopped.load(Ordering::Acquire) {
                    let Some(record) = consumer.view(WAIT)? else { continue };
                    let at = Instant::now();
                    if let Some(number) = record.payload().and_then(rows::number) {
                        _ = tell.send((number, at));
                    }
                }
                Ok(())
            };
            _ = tell_ended.send(read());
        });
        // If it never is, its end says why.
        _ = ready.await;
        Ok(Consuming { stop, arrivals, arrived: Vec::new(), ended })
    }

    /// Waits until so many records have come, or no more do.
    async fn wait_for(&mut self, rows: u64, subject: &mut impl Subject) -> Result<(), BenchError> {
        let mut heard = Instant::now();
        while (self.arrived.len() as u64) < rows {
            match tokio::time::timeout(WAIT, self.arrivals.recv()).await {
                Ok(Some(arrival)) => {
                    self.arrived.push(arrival);
                    heard = Instant::now();
                }
                Ok(None) => break, // its end says why
                Err(_) if heard.elapsed() > ARRIVE_WITHIN => {
                    let text = format!(
                        "{} of {rows} rows have arrived, and none for {ARRIVE_WITHIN:?}",
                        self.arrived.len()
                    );
                    return Err(BenchError::Subject(text));
                }
                Err(_) => subject.check()?,
            }
        }
        Ok(())
    }

    /// What arrived, in the order of its arrival.
    async fn finish(self) -> Result<Vec<(u64, Instant)>, BenchError> {
        drop(self.stop);
        match self.ended.await {
            Ok(done) => done.map(|()| self.arrived).map_err(BenchError::Kafka),
            Err(_) => Err(BenchError::Subject("the consumer panicked".to_owned())),
        }
    }
}
