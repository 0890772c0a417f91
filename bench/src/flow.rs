//! A flow: writers insert as fast as they can, and the relay works beside them.

use super::checker::Verdict;
use super::error::BenchError;
use super::place::{Place, Route};
use super::subject::Subject;
use super::usage::{Meter, Party, Usage};
use super::verify;
use super::writers::{Work, Writers};
use crate::postgres::load::{self, Shape};
use serde::Serialize;
use std::pin::pin;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After the writers have ended, longer without an arrival is a failure.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What writers did, with the relay beside them or without it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// Connections that inserted.
    pub writers: u64,
    /// Rows of each of their transactions.
    pub rows_per_transaction: u64,
    /// Rows a second that they committed.
    pub written_rows_per_second: f64,
    /// Rows a second that arrived until then.
    pub delivered_rows_per_second: f64,
    /// Rows that were committed and had not arrived, in the middle of the time.
    pub lag_rows_half: u64,
    /// The same at its end. If it is much more than in the middle, the relay does not keep up.
    pub lag_rows_end: u64,
    /// From the last commit until everything had arrived.
    pub catch_up_seconds: f64,
    /// What the parties used while there were writers: the subject first, at the end the writers themselves.
    pub usage: Vec<Usage>,
    /// What arrived.
    pub verdict: Verdict,
}

/// How fast the writers are without a relay, in rows a second. Leaves the outbox empty.
///
/// # Errors
///
/// Postgres fails.
pub async fn alone(place: &Place, shape: &Shape, work: &Work) -> Result<f64, BenchError> {
    let writers = Writers::start(&place.config().postgres, &place.table(), shape, *work);
    let written = writers.finish().await?;
    let rows: u64 = written.committed.0.iter().sum();
    load::empty(place.database(), &place.table()).await?;
    Ok(rows as f64 / (written.ended - written.begun).as_secs_f64())
}

/// Measures a subject that runs. The outbox has to be empty, and the topics, too.
///
/// # Errors
///
/// The subject ends, nothing arrives for a minute, or Postgres or Kafka fails.
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
            () = tokio::time::sleep(LOOK_EVERY) => subject.check()?,
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
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
