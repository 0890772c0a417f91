//! Detects faults that affect only this relay: another relay publishes to a topic that is silent for this one.
//!
//! This relay must not hold such a topic. The others would release it, and this one would hold it again for as long as its
//! network is broken. It closes its own gate instead, and the other relays do its work.
//!
//! The evidence is in the database. This relay held a topic because it was silent. Later the hold is gone although this
//! relay did not release it, and the row that it could not publish is settled. If the topic is silent again, and its leader
//! does not answer this relay, the fault is local. The gate opens when the leader answers or is no longer the leader.

use crate::relay::Relay;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::publisher::{Producer, Publisher};
use crate::relay::reason::BROKER_UNREACHABLE;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long it matters that another relay has published to a topic.
const COUNTS_FOR: Duration = Duration::from_secs(600);
const TOPICS_MAX: usize = 1_000;
/// The maximum number of leaders to ask before a topic is held.
const LEADERS_MAX: usize = 4;
/// If the first waiting row stays the same for this long, no other relay does this one's work.
const NO_OTHER_RELAY_AFTER: Duration = Duration::from_secs(20);

/// What this relay knows of topics that other relays can reach.
#[derive(Default)]
pub(crate) struct Isolation {
    /// Topics that this relay has held because they were silent, each with the row that was not acknowledged.
    stuck: RefCell<HashMap<String, i64>>,
    /// Those that another relay has published to since, and when this relay noticed.
    works: RefCell<HashMap<String, Instant>>,
    /// The partition whose leader only this relay cannot reach.
    cut_off: RefCell<Option<(String, u32)>>,
    /// While cut off: the first waiting row, and since when it has been the first.
    waiting: Cell<Option<(i64, Instant)>>,
}

impl Isolation {
    /// Records that this relay holds a topic because this row was not acknowledged.
    pub(crate) fn held(&self, topic: &str, row: i64) {
        let mut stuck = self.stuck.borrow_mut();
        if stuck.len() < TOPICS_MAX {
            // If several workers detect the fault, the first one has recorded the hold, and its row is published first.
            stuck.entry(topic.to_owned()).or_insert(row);
        }
    }

    /// Forgets a topic that this relay has published to.
    pub(crate) fn forget(&self, topic: &str) {
        self.stuck.borrow_mut().remove(topic);
        self.works.borrow_mut().remove(topic);
    }

    /// The topics that this relay held, each with the row that was not acknowledged.
    pub(crate) fn stuck(&self) -> Vec<(String, i64)> {
        self.stuck.borrow().iter().map(|(topic, row)| (topic.clone(), *row)).collect()
    }

    /// Records that another relay has published to these topics.
    pub(crate) fn released(&self, topics: Vec<String>) {
        let (now, mut works) = (Instant::now(), self.works.borrow_mut());
        works.retain(|_, at| at.elapsed() < COUNTS_FOR);
        for topic in topics {
            self.stuck.borrow_mut().remove(&topic);
            works.insert(topic, now);
        }
    }

    fn works(&self, topic: &str) -> bool {
        self.works.borrow().get(topic).is_some_and(|at| at.elapsed() < COUNTS_FOR)
    }

    /// Whether this relay leaves its work to others.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.borrow().is_some()
    }

    /// Records the first waiting row while this relay is cut off. If no other relay publishes it, this one resumes work and
    /// holds the topics that it cannot reach.
    pub(crate) fn first_waiting(&self, row: Option<i64>) {
        let since = match (row, self.waiting.get()) {
            (Some(row), Some((same, since))) if row == same => since,
            (Some(row), _) => {
                self.waiting.set(Some((row, Instant::now())));
                return;
            }
            (None, _) => return self.waiting.set(None),
        };
        if since.elapsed() >= NO_OTHER_RELAY_AFTER {
            self.works.borrow_mut().clear();
            self.reached();
        }
    }

    fn reached(&self) {
        self.cut_off.replace(None);
        self.waiting.set(None);
    }
}

/// Whether the leader of a partition can be reached.
enum Answer {
    /// The leader answers, or there is no leader.
    Reached,
    /// The leader does not answer this relay.
    Unreachable(Failure),
    /// The brokers could not be asked for the leader.
    Unclear(Failure),
}

/// Called when some partitions are silent although the cluster answers. If another relay publishes to one of them and its
/// leader does not answer this relay, this relay is cut off.
pub(crate) async fn cut_off<P: Publisher>(relay: &Relay<P>, silent: Vec<(String, u32)>) -> Option<Failure> {
    let silent = silent.into_iter().filter(|(topic, _)| relay.holds.isolation.works(topic));
    for place in silent.take(LEADERS_MAX) {
        if let Answer::Unreachable(failure) = ask_leader(relay, &place).await {
            relay.holds.isolation.cut_off.replace(Some(place));
            return Some(failure);
        }
    }
    None
}

/// Fails while this relay is still cut off from the leader for which it has closed its gate. Only an answer ends that; a
/// request without an answer must not open the gate.
pub(crate) async fn is_still_cut_off<P: Publisher>(relay: &Relay<P>) -> Result<(), Failure> {
    let place = relay.holds.isolation.cut_off.borrow().clone();
    let Some(place) = place else { return Ok(()) };
    match ask_leader(relay, &place).await {
        Answer::Unreachable(failure) | Answer::Unclear(failure) if relay.holds.isolation.is_cut_off() => {
            Err(failure)
        }
        _ => {
            relay.holds.isolation.reached();
            Ok(())
        }
    }
}

async fn ask_leader<P: Publisher>(relay: &Relay<P>, (topic, partition): &(String, u32)) -> Answer {
    let producer = match relay.publisher.open_for_probes().await {
        Ok(producer) => producer,
        Err(failure) => return Answer::Unclear(failure),
    };
    let leaders = producer.leaders(topic).await;
    let leader = match leaders {
        Ok(leaders) => leaders.get(*partition as usize).copied().flatten(),
        Err(failure) if failure.kind == FailureKind::Topic => None,
        Err(failure) => {
            producer.abandon();
            return Answer::Unclear(failure);
        }
    };
    let answer = match leader {
        Some(_) => producer.reach_leader(topic, *partition).await,
        None => Ok(()),
    };
    producer.abandon();
    match (leader, answer) {
        (Some(leader), Err(failure)) if failure.kind != FailureKind::Topic => {
            Answer::Unreachable(BROKER_UNREACHABLE.failure(format!(
                "this relay cannot reach broker {leader}, the leader of partition {partition} of topic {topic}: {}. \
                 Other relays can reach it",
                failure.error
            )))
        }
        _ => Answer::Reached,
    }
}
