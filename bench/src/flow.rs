//! A flow, in which writers insert as fast as they can while the relay publishes, and its opposite: a relay that has
//! nothing to do.

use crate::checker::Verdict;
use crate::drain;
use crate::load::Shape;
use crate::place::{Place, Route};
use crate::relay::Subject;
use crate::usage::{Meter, Party, Usage};
use crate::writers::{Work, Writers};
use crate::{BenchError, verify};
use serde::Serialize;
use std::pin::pin;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    pub writers: u64,
    pub rows_per_transaction: u64,
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
    pub verdict: Verdict,
}

/// The rate of the writers without a relay, in rows per second. Leaves the outbox empty.
pub async fn alone(place: &Place, shape: &Shape, work: &Work) -> Result<f64, BenchError> {
    let writers = Writers::start(place, shape, *work);
    let written = writers.finish().await?;
    place.empty().await?;
    Ok(written.rows() as f64 / (written.ended - written.begun).as_secs_f64())
}

/// Measures a running subject. The outbox and the topics must be empty.
pub async fn measure<S: Subject>(
    route: &Route<'_>,
    subject: &mut S,
    work: &Work,
) -> Result<Flow, BenchError> {
    let mut parties = route.place.watched(subject);
    parties.push(Party::this_process("bench"));
    let meter = Meter::start(parties);
    let mut writers = Writers::start(route.place, &route.shape, *work);
    let begun = writers.begun().await;
    let (began, half) = (meter.read(), begun + work.time / 2);
    let (mut lag_half, written_by_now) = (None, writers.written());
    let arrived = || route.arrived();
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
    let rows = written.rows();
    drain::wait_for_all(route, subject, rows).await?;
    let catch_up = written.ended.elapsed();
    let usage = meter.used(&began, &ended, delivered);
    drop(meter);
    let verdict = verify::read(route, &written.committed, S::EVENT_ID).await?;
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

/// The time after the start until the relay polls at its longest interval.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle {
    pub seconds: f64,
    /// What the parties used. For the servers, this includes work for other clients.
    pub usage: Vec<Usage>,
}

/// Watches a running subject that has nothing to do.
pub async fn measure_idle(
    place: &Place,
    subject: &mut impl Subject,
    time: Duration,
) -> Result<Idle, BenchError> {
    let meter = Meter::start(place.watched(subject));
    tokio::time::sleep(SETTLE).await;
    let began = meter.read();
    tokio::time::sleep(time).await;
    subject.check()?;
    let ended = meter.read();
    let seconds = (ended.at - began.at).as_secs_f64();
    Ok(Idle { seconds, usage: meter.used(&began, &ended, 0) })
}
