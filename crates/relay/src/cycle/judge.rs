//! Judging: when Kafka refused rows, they are published again on separate producers in ever smaller groups, so that valid
//! rows are delivered and only a row that is refused alone is rejected.
//!
//! A row is judged only after every earlier row of its partition was acknowledged or rejected. Rows after an open one are
//! claimed again.

use crate::cycle::publish::Sending;
use crate::cycle::session::Destination;
use crate::publisher::Judged;
use crate::reason::{OTHER_RECORD_REFUSED, RECORD_TOO_LARGE, REJECTS_EVERYTHING};
use crate::{
    Batch, Event, FailureKind, Fate, KafkaFailure, Memory, Producer, Publisher, Rejection, Relay, Session,
};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// After this time, the remaining suspects are left to later claims, because other rows of the lanes wait meanwhile. A search
/// for a refused row ends first, so each claim makes progress.
const JUDGE_FOR: Duration = Duration::from_millis(500);

/// Judges the suspects of a batch, one partition after the other. Returns the failure that ended this early, if any.
pub(super) async fn judge<E: Event, P: Publisher>(sending: &mut Sending<'_, E, P>) -> Option<KafkaFailure> {
    let until = Instant::now() + JUDGE_FOR;
    for suspects in suspects(sending.session, &sending.batch) {
        let failure = judge_destination(sending, suspects, until).await;
        if failure.is_some() {
            return failure;
        }
        if Instant::now() >= until {
            break;
        }
    }
    None
}

/// The suspects of one partition, up to its first open row.
struct Suspects {
    destination: Destination,
    rows: Vec<usize>,
}

fn suspects<E: Event, P: Producer>(session: &Session<P>, batch: &Batch<E>) -> Vec<Suspects> {
    let mut found: Vec<Suspects> = Vec::new();
    let mut at: HashMap<Destination, Option<usize>> = HashMap::new();
    for index in 0..batch.len() {
        let Some(destination) = session.destination(index) else { continue };
        match batch.fate(index) {
            Fate::Open | Fate::InFlight => _ = at.insert(destination, None),
            Fate::Suspect => {
                let entry = at.entry(destination).or_insert_with(|| {
                    found.push(Suspects { destination, rows: Vec::new() });
                    Some(found.len() - 1)
                });
                if let Some(entry) = *entry {
                    found[entry].rows.push(index);
                }
            }
            _ => {}
        }
    }
    found
}

/// Halves the group that is published at once until it is accepted or is a single row. Ends after a refused row once the time
/// is up. Returns the failure that ends the judging of other partitions, too.
async fn judge_destination<E: Event, P: Publisher>(
    Sending { relay, session, batch }: &mut Sending<'_, E, P>,
    Suspects { destination, rows: mut rest }: Suspects,
    until: Instant,
) -> Option<KafkaFailure> {
    let topic = session.topic(destination).to_owned();
    let mut width = rest.len() / 2; // all of them together were refused already
    loop {
        rest.retain(|&index| !batch.is_blocked(index));
        let &first = rest.first()?;
        let group = &rest[..width.min(rows_before_large(&relay.memory, &topic, batch, &rest)).max(1)];
        let rows: Vec<&E> = group.iter().map(|&index| &batch.rows()[index]).collect();
        let Judged { acknowledged, failure } =
            relay.kafka.publisher.judge(&topic, destination.partition, &rows).await;
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
                if refused_alone(relay, &topic, &batch.rows()[first], &failure) {
                    session.hold(destination, rejects_everything(relay, &failure));
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
            FailureKind::Unknown | FailureKind::Cluster | FailureKind::Session => return Some(failure),
        }
    }
}

/// How many rows precede the first one that is as large as a refused row. That one is judged alone at once, because halving
/// would take more steps to find it.
fn rows_before_large<E: Event>(memory: &Memory, topic: &str, batch: &Batch<E>, rest: &[usize]) -> usize {
    let is_large = |index: usize| memory.streaks.refuse_size(topic, batch.rows()[index].size());
    rest.iter().take_while(|&&index| !is_large(index)).count()
}

/// Records that a row was refused alone. Returns true after so many in a row that the topic must be the cause.
fn refused_alone<E: Event, P>(relay: &Relay<P>, topic: &str, row: &E, failure: &KafkaFailure) -> bool {
    let too_large = (failure.reason == RECORD_TOO_LARGE.word).then(|| row.size());
    let refused = relay.memory.streaks.refused(topic, row.event_id(), too_large);
    refused > relay.settings.limits().rejections_before_hold as usize
}

fn rejects_everything<P>(relay: &Relay<P>, failure: &KafkaFailure) -> Rejection {
    let error = format!(
        "more than {} events in a row were rejected, each sent alone: {}",
        relay.settings.limits().rejections_before_hold,
        failure.error
    );
    REJECTS_EVERYTHING.rejection(error)
}

#[cfg(test)]
mod tests;
