//! What a relay costs that has nothing to do.

use super::error::BenchError;
use super::place::Place;
use super::subject::Subject;
use super::usage::{Meter, Usage};
use serde::Serialize;
use std::time::Duration;

/// After its start, until it polls as seldom as it ever does.
const SETTLE: Duration = Duration::from_secs(2);

/// What it cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle {
    /// How long it was watched.
    pub seconds: f64,
    /// What the parties used; of the servers all that they did, for others too.
    pub usage: Vec<Usage>,
}

/// Watches a subject that runs and has nothing to do.
///
/// # Errors
///
/// It ends.
pub async fn measure(place: &Place, subject: &mut impl Subject, time: Duration) -> Result<Idle, BenchError> {
    let mut parties = vec![subject.party()];
    parties.extend(place.parties().visible());
    let meter = Meter::start(parties);
    tokio::time::sleep(SETTLE).await;
    let began = meter.read();
    tokio::time::sleep(time).await;
    subject.check()?;
    let ended = meter.read();
    let seconds = (ended.at - began.at).as_secs_f64();
    Ok(Idle { seconds, usage: meter.used(&began, &ended, 0) })
}
