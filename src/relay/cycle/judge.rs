//! Judging: rows of which Kafka refused some are published again on producers of their own, in ever smaller groups, so
//! that the innocent are delivered and only a row that was refused alone is found guilty.
//!
//! In order: a row is judged only after every row before it in its partition was acknowledged or found guilty. What
//! stays open behind a row whose fate is open is claimed again.

use crate::relay::Relay;
use crate::relay::cycle::session::{Place, Session};
use crate::relay::event::Event;
use crate::relay::failure::{Failure, FailureKind, Rejection};
use crate::relay::publisher::{Judged, Producer, Publisher};
use crate::relay::reason::{OTHER_RECORD_REFUSED, RECORD_TOO_LARGE, REJECTS_EVERYTHING};
use crate::relay::rows::Fate;
use crate::relay::rows::batch::Batch;
use std::collections::HashMap;

/// Judges the suspects of a batch, one partition after the other. Returns what stopped it before its end, if anything
/// did: then none of the remaining suspects is judged.
pub async fn judge<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &mut Batch<E>,
) -> Option<Failure> {
    for (place, suspects) in suspects(session, batch) {
        if let Next::Stop(failure) = judge_place(relay, session, batch, place, &suspects).await {
            return Some(failure);
        }
    }
    None
}

/// The suspects of each partition, as far as their turn has come: up to the first row whose fate is open.
fn suspects<E: Event, P: Producer>(session: &Session<P>, batch: &Batch<E>) -> Vec<(Place, Vec<usize>)> {
    let mut found: Vec<(Place, Vec<usize>)> = Vec::new();
    let mut at: HashMap<Place, Option<usize>> = HashMap::new();
    for index in 0..batch.len() {
        let Some(place) = session.place(index) else { continue };
        match batch.fate(index) {
            Fate::Open | Fate::InFlight => _ = at.insert(place, None),
            Fate::Suspect => {
                let entry = at.entry(place).or_insert_with(|| {
                    found.push((place, Vec::new()));
                    Some(found.len() - 1)
                });
                if let Some(entry) = *entry {
                    found[entry].1.push(index);
                }
            }
            _ => {}
        }
    }
    found
}

enum Next {
    Place,
    Stop(Failure),
}

/// Halves the group that is published at once until it goes through or is a single row.
async fn judge_place<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &mut Batch<E>,
    place: Place,
    suspects: &[usize],
) -> Next {
    let topic = session.topic(place).to_owned();
    let mut rest: Vec<usize> = suspects.to_vec();
    let mut width = rest.len() / 2; // All of them together were refused already.
    loop {
        rest.retain(|&index| !batch.is_blocked(index));
        let Some(&first) = rest.first() else { return Next::Place };
        let group = &rest[..width.min(innocent(relay, &topic, batch, &rest)).max(1)];
        let rows: Vec<&E> = group.iter().map(|&index| &batch.rows()[index]).collect();
        let Judged { acknowledged, failure } = relay.publisher.judge(&topic, place.partition, &rows).await;
        let size = group.len();
        for index in rest.drain(..acknowledged) {
            relay.rows.refusals.accepted(&topic, batch.rows()[index].size());
            batch.acknowledged(index);
        }
        let Some(failure) = failure else {
            width = 2 * size;
            continue;
        };
        match failure.kind {
            FailureKind::Row if size > 1 => width = (size - acknowledged) / 2,
            // That another record was refused cannot be, alone: what it says of this one is not known.
            FailureKind::Row if failure.reason == OTHER_RECORD_REFUSED.word => return Next::Stop(failure),
            FailureKind::Row => {
                if refused_alone(relay, &topic, &batch.rows()[first], &failure) {
                    session.hold(place, rejects_everything(relay, &failure));
                    return Next::Place;
                }
                batch.rejected(first, &topic, failure.into());
                rest.remove(0);
            }
            FailureKind::Topic => {
                session.hold(place, failure.into());
                return Next::Place;
            }
            FailureKind::Unknown | FailureKind::Cluster | FailureKind::Session => {
                return Next::Stop(failure);
            }
        }
    }
}

/// How many rows are smaller than one that the topic has refused for its size. The next one goes alone at once: halving
/// would find it in more steps.
fn innocent<E: Event, P>(relay: &Relay<P>, topic: &str, batch: &Batch<E>, rest: &[usize]) -> usize {
    let is_large = |index: usize| relay.rows.refusals.sizes.covers(topic, batch.rows()[index].size());
    rest.iter().take_while(|&&index| !is_large(index)).count()
}

/// Notes that a row was refused alone. True if so many were, one after the other, that it must be the topic.
fn refused_alone<E: Event, P>(relay: &Relay<P>, topic: &str, row: &E, failure: &Failure) -> bool {
    let too_large = (failure.reason == RECORD_TOO_LARGE.word).then(|| row.size());
    let refused = relay.rows.refusals.refused(topic, row.event_id(), too_large);
    refused > relay.settings.limits().rejections_before_hold as usize
}

fn rejects_everything<P>(relay: &Relay<P>, failure: &Failure) -> Rejection {
    let error = format!(
        "more than {} events in a row were rejected, each sent alone: {}",
        relay.settings.limits().rejections_before_hold,
        failure.error
    );
    REJECTS_EVERYTHING.rejection(error)
}

#[cfg(test)]
mod tests;
