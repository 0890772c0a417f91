//! Checks of held topics before any lane is locked and without a write: do they exist, and do their leaders answer?

use crate::failure::{Failure, FailureKind};
use crate::holds::prober::{Due, Witness};
use crate::holds::results::ProbeResults;
use crate::partition;
use crate::publisher::Producer;
use crate::reason::LEADER_MOVING;
use futures_util::stream::{FuturesUnordered, StreamExt, iter};
use std::collections::BTreeMap;

/// The maximum number of concurrent requests to the brokers; each has a thread.
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
    found: &mut ProbeResults,
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
    found: &mut ProbeResults,
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

/// Like [`reachable`], for partitions with the same leader.
async fn reachable_through<P: Producer>(
    producer: &P,
    mut candidates: Vec<Candidate>,
) -> (Vec<Candidate>, Vec<(String, Failure)>) {
    let mut fails = Vec::new();
    while let Some(candidate) = candidates.first() {
        let Err(failure) = producer.reach_leader(&candidate.due.topic, candidate.partition).await else {
            break;
        };
        if failure.kind == FailureKind::Topic || failure.reason == LEADER_MOVING.word {
            // Only this topic is affected. A newly elected leader may not know yet that it is the leader.
            fails.push((candidates.swap_remove(0).due.topic, failure));
            continue;
        }
        fails.extend(candidates.drain(..).map(|candidate| (candidate.due.topic, failure.clone())));
    }
    (candidates, fails)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::lane::Lane;
    use crate::publisher::{DeliveryReport, Refusal};
    use crate::reason::{NO_ANSWER, Reason, UNKNOWN_TOPIC};

    /// A producer whose leaders all answer, except for these topics.
    struct AllBut(&'static [(&'static str, &'static Reason)]);

    impl Producer for AllBut {
        async fn reach_leader(&self, topic: &str, _: u32) -> Result<(), Failure> {
            let found = self.0.iter().find(|(name, _)| *name == topic);
            found.map_or(Ok(()), |(_, reason)| Err(reason.failure(topic)))
        }
        async fn lookup(&self, _: &str) -> Result<u32, Failure> {
            unreachable!("only leaders are asked")
        }
        async fn leaders(&self, _: &str) -> Result<Vec<Option<i32>>, Failure> {
            unreachable!("the candidates have leaders")
        }
        fn send<E: Event>(&mut self, _: u32, _: &str, _: u32, _: &E) -> Result<(), Refusal> {
            unreachable!("nothing is sent")
        }
        fn has_failed(&self) -> bool {
            false
        }
        fn refusal(&self) -> Option<Failure> {
            None
        }
        fn drain(&mut self, _: &mut Vec<DeliveryReport>) {}
        async fn quiet(&mut self, _: bool) {}
        async fn take_back(&mut self) {}
        async fn drained(&mut self) {}
        fn abandon(self) {}
    }

    async fn reached(producer: AllBut) -> (Vec<String>, Vec<String>) {
        let candidate = |topic: &str| {
            let due = Due { topic: topic.to_owned(), reason: UNKNOWN_TOPIC.word.to_owned() };
            Candidate::new(due, Witness { lane: Lane::new(1).unwrap(), id: 1, key: None }, &[Some(1)])
        };
        let mut found = ProbeResults::default();
        let candidates = ["a", "b", "c"].map(candidate).into();
        let reached = reachable(&producer, candidates, &mut found).await;
        let mut reached: Vec<String> = reached.into_iter().map(|candidate| candidate.due.topic).collect();
        reached.sort();
        (reached, found.fails.into_iter().map(|(topic, _)| topic).collect())
    }

    #[tokio::test]
    async fn a_partition_whose_leader_moves_postpones_no_other_topic_of_the_broker() {
        let (reached, fails) = reached(AllBut(&[("a", &LEADER_MOVING)])).await;
        assert_eq!(reached, ["b", "c"]);
        assert_eq!(fails, ["a"]);
    }

    #[tokio::test]
    async fn a_broker_that_does_not_answer_postpones_all_of_its_topics() {
        let (reached, fails) = reached(AllBut(&[("a", &NO_ANSWER)])).await;
        assert!(reached.is_empty(), "{reached:?}");
        assert_eq!(fails, ["a", "b", "c"]);
    }
}
