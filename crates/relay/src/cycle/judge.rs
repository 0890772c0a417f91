//! Judging: when Kafka refused rows, they are published again on separate producers in ever smaller groups, so that valid
//! rows are delivered and only a row that is refused alone is rejected.
//!
//! A row is judged only after every earlier row of its partition was acknowledged or rejected. Rows after an open one are
//! claimed again.

use crate::cycle::publish::{Sending, patience};
use crate::cycle::session::Destination;
use crate::publisher::Judged;
use crate::reason::{OTHER_RECORD_REFUSED, RECORD_TOO_LARGE, REJECTS_EVERYTHING};
use crate::{Batch, Event, FailureKind, Fate, KafkaFailure, Producer, Publisher, Rejection, Relay, Session};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;

/// After this time, the remaining suspects are left to later claims, because other rows of the lanes wait meanwhile. A search
/// for a refused row ends first, so each claim makes progress.
const JUDGE_FOR: Duration = Duration::from_millis(500);

/// Judges the suspects of a batch, one partition after the other. Returns the failure that ended this early, if any.
pub(super) async fn judge<E: Event, P: Publisher>(sending: &mut Sending<'_, E, P>) -> Option<KafkaFailure> {
    let until = Instant::now() + JUDGE_FOR;
    for (destination, rows) in suspects(sending.session, &sending.batch) {
        let failure = judge_destination(sending, destination, rows, until).await;
        if failure.is_some() {
            return failure;
        }
        if Instant::now() >= until {
            break;
        }
    }
    None
}

/// The suspects of each partition, up to its first open row. The partition with the earliest suspect comes first.
fn suspects<E: Event, P: Producer>(session: &Session<P>, batch: &Batch<E>) -> Vec<(Destination, Vec<usize>)> {
    let mut found: HashMap<Destination, Vec<usize>> = HashMap::new();
    let mut ended = HashSet::new();
    for index in 0..batch.len() {
        let Some(destination) = session.destination(index) else { continue };
        let fate = batch.fate(index);
        if fate.is_undecided() {
            ended.insert(destination);
        } else if fate == Fate::Suspect && !ended.contains(&destination) {
            found.entry(destination).or_default().push(index);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_unstable_by_key(|(_, rows)| rows[0]);
    found
}

/// Halves the group that is published at once until it is accepted or is a single row. Ends after a refused row once the time
/// is up. Returns the failure that ends the judging of other partitions, too.
async fn judge_destination<E: Event, P: Publisher>(
    Sending { relay, session, batch }: &mut Sending<'_, E, P>,
    destination: Destination,
    mut rest: Vec<usize>,
    until: Instant,
) -> Option<KafkaFailure> {
    let topic = session.topic(destination).to_owned();
    let mut width = rest.len() / 2; // all of them together were refused already
    loop {
        if !session.may_send() {
            return None;
        }
        rest.retain(|&index| !batch.is_blocked(index));
        let &first = rest.first()?;
        // A row as large as a refused one is judged alone at once, because halving would take more steps to find it.
        let is_small =
            |&&index: &&usize| !relay.memory.streaks.refuse_size(&topic, batch.rows()[index].size());
        let small = rest.iter().take_while(is_small).count();
        let group = &rest[..width.min(small).max(1)];
        let rows: Vec<&E> = group.iter().map(|&index| &batch.rows()[index]).collect();
        let begun = Instant::now();
        let (place, may_send) = (destination.partition, || session.may_send());
        let judging = relay.kafka.publisher.judge(&topic, place, &rows, patience(relay), may_send);
        let Judged { acknowledged, failure } = judging.await;
        let size = group.len();
        for index in rest.drain(..acknowledged) {
            relay.memory.streaks.accepted(&topic, batch.rows()[index].size());
            batch.set(index, Fate::Acknowledged);
        }
        let Some(failure) = failure else {
            width = 2 * size;
            continue;
        };
        match failure.kind {
            FailureKind::Row if size > 1 => width = (size - acknowledged) / 2,
            // The row was alone in its request, so this reason cannot be right. Whether the row is at fault is unknown.
            FailureKind::Row if failure.reason == OTHER_RECORD_REFUSED.word => return Some(failure),
            FailureKind::Row => {
                if let Some(why) = note_refused_alone(relay, &topic, &batch.rows()[first], &failure) {
                    session.hold(destination, why);
                    return None;
                }
                batch.rejected(first, &topic, failure.into());
                rest.remove(0);
                if Instant::now() >= until {
                    return None;
                }
            }
            FailureKind::Topic => {
                session.hold(destination, failure.into());
                return None;
            }
            FailureKind::Unknown
                if acknowledged == 0 && is_stuck(relay, session, batch, destination, begun).await =>
            {
                session.hold_silent(destination, patience(relay), &format!(": {}", failure.error));
                return None;
            }
            FailureKind::Unknown | FailureKind::Cluster | FailureKind::Session => return Some(failure),
        }
    }
}

/// Whether only this partition is silent: others have acknowledged rows, in this batch or since `begun`, and the cluster answers.
/// A quota does not delay the first records of a new connection.
async fn is_stuck<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &Session<P::Producer>,
    batch: &Batch<E>,
    partition: Destination,
    begun: Instant,
) -> bool {
    let acknowledged_at = relay.health.acknowledged_at.get();
    let others_work =
        session.others_work(batch, Some(partition)) || acknowledged_at.is_some_and(|at| at > begun);
    others_work && relay.kafka.publisher.probe().await.is_ok()
}

/// Records that a row was refused alone. Returns why to hold its topic, after so many in a row that the topic must be the cause.
fn note_refused_alone<E: Event, P>(
    relay: &Relay<P>,
    topic: &str,
    row: &E,
    failure: &KafkaFailure,
) -> Option<Rejection> {
    let limit = relay.settings.limits().rejections_before_hold;
    let too_large = (failure.reason == RECORD_TOO_LARGE.word).then(|| row.size());
    let refused = relay.memory.streaks.refused(topic, row.event_id(), too_large);
    (refused > limit as usize).then(|| {
        let error =
            format!("more than {limit} events in a row were rejected, each sent alone: {}", failure.error);
        REJECTS_EVERYTHING.rejection(error)
    })
}

#[cfg(test)]
mod tests;
