//! The cost of a relay that has nothing to do.

use crate::error::BenchError;
use crate::place::Place;
use crate::processes::usage::{Meter, Usage};
use crate::subject::Subject;
use serde::Serialize;
use std::time::Duration;

/// The time after the start until the relay polls at its longest interval.
const SETTLE: Duration = Duration::from_secs(2);

/// The measurements of an idle relay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle {
    /// How long the relay was watched.
    pub seconds: f64,
    /// What the parties used. For the servers, this includes work for other clients.
    pub usage: Vec<Usage>,
}

/// Watches a running subject that has nothing to do.
///
/// # Errors
///
/// If the subject ends.
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
