//! Checks of held topics before any lane is locked and without a write: do they exist, and do their leaders answer?

use crate::relay::failure::{Failure, FailureKind};
use crate::relay::holds::found::Found;
use crate::relay::holds::prober::{Due, Witness};
use crate::relay::partition;
use crate::relay::publisher::Producer;
use crate::relay::reason::LEADER_MOVING;
use futures_util::stream::{FuturesUnordered, StreamExt, iter};
use std::collections::BTreeMap;

/// The most concurrent requests to the brokers; each has a thread.
const REQUESTS_MAX: usize = 16;

/// A topic with the row to probe it with.
pub(crate) struct Candidate {
    pub(crate) due: Due,
    pub(crate) witness: Witness,
    pub(crate) partitions: u32,
    partition: u32,
    leader: Option<i32>,
}

impl Candidate {
    pub(crate) fn new(due: Due, witness: Witness, leaders: &[Option<i32>]) -> Candidate {
        let partitions = leaders.len() as u32;
        let partition = witness.key.as_deref().map_or(0, |key| partition::of(key, partitions));
        let leader = leaders.get(partition as usize).copied().flatten();
        Candidate { due, witness, partitions, partition, leader }
    }
}

/// Fetches the leaders of these topics. Topics that are missing or without an answer fail.
pub(crate) async fn leaders<P: Producer>(
    producer: &P,
    due: Vec<Due>,
    found: &mut Found,
) -> Vec<(Due, Vec<Option<i32>>)> {
    let mut known = Vec::with_capacity(due.len());
    let ask = |due: Due| async move {
        let leaders = producer.leaders(&due.topic).await;
        (due, leaders)
    };
    let mut due = due.into_iter();
    // Ask for the first topic alone: if no broker answers, the other requests are not needed.
    if let Some(first) = due.next() {
        match ask(first).await {
            (first, Ok(leaders)) => known.push((first, leaders)),
            (first, Err(failure)) => {
                let silent = failure.kind != FailureKind::Topic;
                found.fails.push((first.topic, failure));
                if silent {
                    found.unknown.extend(due.map(|due| due.topic));
                    return known;
                }
            }
        }
    }
    let mut answers = iter(due.map(ask)).buffer_unordered(REQUESTS_MAX);
    while let Some((due, answer)) = answers.next().await {
        match answer {
            Ok(leaders) => known.push((due, leaders)),
            Err(failure) => found.fails.push((due.topic, failure)),
        }
    }
    known
}

/// The candidates whose leader answers this relay. Sends one request to each broker, concurrently.
pub(crate) async fn reachable<P: Producer>(
    producer: &P,
    candidates: Vec<Candidate>,
    found: &mut Found,
) -> Vec<Candidate> {
    let mut of_broker: BTreeMap<i32, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        match candidate.leader {
            Some(broker) => of_broker.entry(broker).or_default().push(candidate),
            None => {
                let error = format!("partition {} has no leader", candidate.partition);
                found.fails.push((candidate.due.topic, LEADER_MOVING.failure(error)));
            }
        }
    }
    let mut requests: FuturesUnordered<_> =
        of_broker.into_values().map(|candidates| reachable_through(producer, candidates)).collect();
    let mut reached = Vec::new();
    while let Some((answer, fails)) = requests.next().await {
        reached.extend(answer);
        found.fails.extend(fails);
    }
    reached
}

/// As [`reachable`], for partitions with the same leader.
async fn reachable_through<P: Producer>(
    producer: &P,
    mut candidates: Vec<Candidate>,
) -> (Vec<Candidate>, Vec<(String, Failure)>) {
    let mut fails = Vec::new();
    while let Some(candidate) = candidates.first() {
        let Err(failure) = producer.reach_leader(&candidate.due.topic, candidate.partition).await else {
            break;
        };
        if failure.kind == FailureKind::Topic {
            // The broker has answered; the failure is about this topic only.
            fails.push((candidates.swap_remove(0).due.topic, failure));
            continue;
        }
        fails.extend(candidates.drain(..).map(|candidate| (candidate.due.topic, failure.clone())));
    }
    (candidates, fails)
}
