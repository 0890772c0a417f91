//! A flow: writers insert as fast as they can while the relay publishes.

use crate::checking::checker::Verdict;
use crate::checking::verify;
use crate::error::BenchError;
use crate::place::{Place, Route};
use crate::postgres::load::{self, Shape};
use crate::processes::usage::{Meter, Party, Usage};
use crate::subject::Subject;
use crate::writers::{Work, Writers};
use serde::Serialize;
use std::pin::pin;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest time without an arrival after the writers have ended.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The measurements of a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// The number of writing connections.
    pub writers: u64,
    /// The number of rows in each of their transactions.
    pub rows_per_transaction: u64,
    /// The rate of committed rows.
    pub written_rows_per_second: f64,
    /// The rate of rows that arrived in that time.
    pub delivered_rows_per_second: f64,
    /// Rows that were committed but had not arrived after half of the time.
    pub lag_rows_half: u64,
    /// The same at the end. If it is much higher than halfway, the relay does not keep up.
    pub lag_rows_end: u64,
    /// The time from the last commit until everything had arrived.
    pub catch_up_seconds: f64,
    /// What the parties used while there were writers. The subject comes first, and the writers last.
    pub usage: Vec<Usage>,
    /// The result of the comparison.
    pub verdict: Verdict,
}

/// The rate of the writers without a relay, in rows per second. Leaves the outbox empty.
///
/// # Errors
///
/// If PostgreSQL fails.
pub async fn alone(place: &Place, shape: &Shape, work: &Work) -> Result<f64, BenchError> {
    let writers = Writers::start(&place.config().postgres, &place.table(), shape, *work);
    let written = writers.finish().await?;
    let rows: u64 = written.committed.0.iter().sum();
    load::empty(place.database(), &place.table()).await?;
    Ok(rows as f64 / (written.ended - written.begun).as_secs_f64())
}

/// Measures a running subject. The outbox and the topics must be empty.
///
/// # Errors
///
/// If the subject ends, if nothing arrives for a minute, or if PostgreSQL or Kafka fails.
pub async fn measure(
    place: &Place,
    route: &Route,
    subject: &mut impl Subject,
    shape: &Shape,
    work: &Work,
) -> Result<Flow, BenchError> {
    let mut parties = vec![subject.party()];
    parties.extend(place.parties().visible());
    parties.push(Party::this_process("bench"));
    let meter = Meter::start(parties);
    let mut writers = Writers::start(&place.config().postgres, &place.table(), shape, *work);
    let begun = writers.begun().await;
    let (began, half) = (meter.read(), begun + work.time / 2);
    let (mut lag_half, written_by_now) = (None, writers.written());
    let arrived = || place.topics().ends(&route.topics, route.partitions);
    let mut finishing = pin!(writers.finish());
    let written = loop {
        tokio::select! {
            written = &mut finishing => break written?,
            () = tokio::time::sleep(POLL_INTERVAL) => subject.check()?,
        }
        if lag_half.is_none() && Instant::now() >= half {
            lag_half = Some(written_by_now().saturating_sub(arrived().await?));
        }
    };
    let delivered = arrived().await?;
    let (looked, ended) = (Instant::now(), meter.read());
    let rows: u64 = written.committed.0.iter().sum();
    let catch_up = caught_up(place, route, subject, rows, written.ended).await?;
    let usage = meter.used(&began, &ended, delivered);
    drop(meter);
    let verdict = verify::read(&place.config().kafka, route, shape, &written.committed).await?;
    let rate = |rows: u64, until: Instant| rows as f64 / (until - written.begun).as_secs_f64();
    Ok(Flow {
        writers: work.writers,
        rows_per_transaction: work.rows_per_transaction,
        written_rows_per_second: rate(rows, written.ended),
        delivered_rows_per_second: rate(delivered, looked),
        lag_rows_half: lag_half.unwrap_or(0),
        lag_rows_end: rows.saturating_sub(delivered),
        catch_up_seconds: catch_up.as_secs_f64(),
        usage,
        verdict,
    })
}

async fn caught_up(
    place: &Place,
    route: &Route,
    subject: &mut impl Subject,
    rows: u64,
    since: Instant,
) -> Result<Duration, BenchError> {
    let (mut most, mut changed) = (0, Instant::now());
    loop {
        let arrived = place.topics().ends(&route.topics, route.partitions).await?;
        if arrived >= rows {
            return Ok(since.elapsed());
        }
        subject.check()?;
        if arrived > most {
            (most, changed) = (arrived, Instant::now());
        } else if changed.elapsed() > SILENCE_MAX {
            let text = format!("{arrived} of {rows} rows have arrived, and none for {SILENCE_MAX:?}");
            return Err(BenchError::Subject(text));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
