//! A steady rate: rows are inserted at a fixed pace while a consumer records how soon each arrives.
//!
//! Writers and consumer are threads of this process, so that one clock measures both ends. The pace is a schedule: a
//! late arrival does not delay the next row. If a writer cannot keep the pace, that is reported.

use crate::checking::checker::Verdict;
use crate::checking::rows;
use crate::checking::verify::{self, StopOnDrop};
use crate::error::BenchError;
use crate::kafka::consume::Consumer;
use crate::measurements::latency::Latency;
use crate::place::{Place, Route};
use crate::postgres::counters::{self, Activity};
use crate::postgres::load::{self, Shape};
use crate::postgres::statements::{self, StatementCost};
use crate::processes::usage::{Meter, Party, Usage};
use crate::subject::Subject;
use crate::writers::{Work, Writers, Written};
use outbox_relay::config;
use outbox_relay::relay::failure::KafkaFailure;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The number of writing connections. Enough that none of them has to wait for its own commit.
const WRITERS: u64 = 16;
/// The maximum number of transactions per second. Above it, transactions have several rows.
const TRANSACTIONS_PER_SECOND_MAX: u64 = 1_000;
/// The time within which everything must arrive after the last commit.
const ARRIVE_WITHIN: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(50);

/// The pace of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Rows per second.
    pub rows_per_second: u64,
    /// Rows per transaction.
    pub rows_per_transaction: u64,
    /// The time at the beginning that is not measured.
    pub warm_up: Duration,
    /// The time that is measured.
    pub time: Duration,
}

/// The measurements of a steady rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// The requested rows per second.
    pub rows_per_second: u64,
    /// Rows per transaction.
    pub rows_per_transaction: u64,
    /// The committed rows per second.
    pub committed_rows_per_second: f64,
    /// How much later than scheduled transactions began. If this is high, the writers could not keep the pace because
    /// the machine was busy, and the latency is that of a busy machine.
    pub writer_late: Latency,
    /// The time of a transaction from its first byte to the answer to its COMMIT.
    pub commit: Latency,
    /// The time from the answer to COMMIT until the consumer had the record, for each row.
    pub latency: Latency,
    /// The same for each minute of the measured time. Rows count in the minute in which their transaction was due.
    #[serde(skip)]
    pub latency_by_minute: Vec<Latency>,
    /// What the parties used. The subject comes first, and the measurement itself (writers and consumer) last.
    pub usage: Vec<Usage>,
    /// What PostgreSQL wrote, including the writers' own share.
    pub activity: Activity,
    /// The most expensive statements of the database, including the writers' own. Empty without pg_stat_statements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<StatementCost>,
    /// The result of the comparison.
    pub verdict: Verdict,
}

impl Pace {
    /// A pace with as few rows per transaction as a thousand transactions per second allow.
    pub fn of(rows_per_second: u64, warm_up: Duration, time: Duration) -> Pace {
        let rows_per_transaction = rows_per_second.div_ceil(TRANSACTIONS_PER_SECOND_MAX);
        Pace { rows_per_second, rows_per_transaction, warm_up, time }
    }

    fn work(&self, shape: &Shape) -> Work {
        Work {
            writers: WRITERS.min(shape.keys),
            rows_per_transaction: self.rows_per_transaction,
            rows_per_second: Some(self.rows_per_second as f64),
            time: self.warm_up + self.time,
        }
    }
}

/// Measures a running subject. The outbox and the topics must be empty.
///
/// # Errors
///
/// If the subject ends, if a row does not arrive within a minute, or if PostgreSQL or Kafka fails.
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
    let (written, used) = write(place, shape, pace, &meter).await?;
    let rows: u64 = written.committed.0.iter().sum();
    consuming.wait_for(rows, subject).await?;
    let arrived = consuming.finish().await?;
    drop(meter);
    let verdict = verify::read(&place.config().kafka, route, shape, &written.committed).await?;
    Ok(summary(pace, &written, &arrived, used, verdict))
}

/// What was used during a measurement.
pub struct Used {
    /// The parties.
    pub usage: Vec<Usage>,
    /// What PostgreSQL wrote.
    pub activity: Activity,
    /// The most expensive statements.
    pub statements: Vec<StatementCost>,
}

/// What the writers alone use. Leaves the outbox empty.
///
/// # Errors
///
/// If PostgreSQL fails.
pub async fn alone(place: &Place, shape: &Shape, pace: &Pace) -> Result<Used, BenchError> {
    let meter = Meter::start(place.parties().visible());
    let (_, used) = write(place, shape, pace, &meter).await?;
    load::empty(place.database(), &place.table()).await?;
    Ok(used)
}

/// Writes at this pace. Also returns what was used, without the warm-up.
async fn write(
    place: &Place,
    shape: &Shape,
    pace: &Pace,
    meter: &Meter,
) -> Result<(Written, Used), BenchError> {
    let mut writers = Writers::start(&place.config().postgres, &place.table(), shape, pace.work(shape));
    let begun = writers.begun().await;
    tokio::time::sleep_until((begun + pace.warm_up).into()).await;
    let (began, before) = (meter.read(), writers.written()());
    let counted = counters::read(place.database()).await?;
    let executed = statements::read(place.database()).await?;
    let written = writers.finish().await?;
    let ended = meter.read();
    let rows = written.committed.0.iter().sum::<u64>() - before;
    let activity = counters::read(place.database()).await?.since(&counted, rows);
    let known = place.statements()?;
    let statements = statements::read(place.database()).await?.since(&executed, rows, &known);
    Ok((written, Used { usage: meter.used(&began, &ended, rows), activity, statements }))
}

fn summary(
    pace: &Pace,
    written: &Written,
    arrived: &[(u64, Instant)],
    used: Used,
    verdict: Verdict,
) -> Steady {
    let rows = pace.rows_per_transaction;
    let streams = written.committed.0.len() as u64;
    let most = written.committed.0.iter().copied().max().unwrap_or(0);
    let mut first: Vec<Option<Instant>> = vec![None; (most * streams) as usize];
    for (number, at) in arrived {
        if let Some(known) = first.get_mut(*number as usize) {
            *known = Some(known.map_or(*at, |known| known.min(*at)));
        }
    }
    let (mut latencies, mut late, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    let mut minutes: Vec<Vec<Duration>> = vec![Vec::new(); pace.time.as_secs().div_ceil(60) as usize];
    let counts = written.begun + pace.warm_up;
    for transaction in written.transactions.iter().filter(|transaction| transaction.due >= counts) {
        late.push(transaction.sent.saturating_duration_since(transaction.due));
        commits.push(transaction.committed - transaction.sent);
        let numbers =
            (transaction.first..transaction.first + rows).map(|row| transaction.stream + streams * row);
        let arrivals = numbers.filter_map(|number| first[number as usize]);
        // A record may arrive before its writer gets the answer to COMMIT. Its latency is then 0.
        let before = latencies.len();
        latencies.extend(arrivals.map(|at| at.saturating_duration_since(transaction.committed)));
        let minute = transaction.due.saturating_duration_since(counts).as_secs() / 60;
        if let Some(minute) = minutes.get_mut(minute as usize) {
            minute.extend(&latencies[before..]);
        }
    }
    let elapsed = written.ended.saturating_duration_since(counts).max(pace.time).as_secs_f64();
    Steady {
        rows_per_second: pace.rows_per_second,
        rows_per_transaction: rows,
        committed_rows_per_second: (late.len() as u64 * rows) as f64 / elapsed,
        writer_late: Latency::of(late),
        commit: Latency::of(commits),
        latency: Latency::of(latencies),
        latency_by_minute: minutes.into_iter().map(Latency::of).collect(),
        usage: used.usage,
        activity: used.activity,
        statements: used.statements,
        verdict,
    }
}

/// The thread of the consumer.
struct Consuming {
    stop: StopOnDrop,
    arrivals: mpsc::UnboundedReceiver<(u64, Instant)>,
    arrived: Vec<(u64, Instant)>,
    ended: oneshot::Receiver<Result<(), KafkaFailure>>,
}

impl Consuming {
    /// Returns when the consumer is reading.
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
        // If it never becomes ready, the result of the thread contains the reason.
        _ = ready.await;
        Ok(Consuming { stop, arrivals, arrived: Vec::new(), ended })
    }

    /// Waits until this number of records has arrived, or no more arrive.
    async fn wait_for(&mut self, rows: u64, subject: &mut impl Subject) -> Result<(), BenchError> {
        let mut last_record = Instant::now();
        while (self.arrived.len() as u64) < rows {
            match tokio::time::timeout(WAIT, self.arrivals.recv()).await {
                Ok(Some(arrival)) => {
                    self.arrived.push(arrival);
                    last_record = Instant::now();
                }
                Ok(None) => break, // the result of the thread contains the reason
                Err(_) if last_record.elapsed() > ARRIVE_WITHIN => {
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

    /// The records in the order of their arrival.
    async fn finish(self) -> Result<Vec<(u64, Instant)>, BenchError> {
        drop(self.stop);
        match self.ended.await {
            Ok(done) => done.map(|()| self.arrived).map_err(BenchError::Kafka),
            Err(_) => Err(BenchError::Subject("the consumer panicked".to_owned())),
        }
    }
}
