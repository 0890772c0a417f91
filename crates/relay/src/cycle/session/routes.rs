//! Maps a row to its topic.

use super::{Priming, Session, TOPICS_KEPT, Topic, TopicState};
use crate::event::Event;
use crate::failure::{Failure, FailureKind, Rejection};
use crate::publisher::{LISTED_FROM, Producer};
use crate::reason::{UNKNOWN_TOPIC, not_listed};
use crate::rows::batch::Batch;
use crate::topic::{self, TopicRules};
use futures_util::{StreamExt, stream};
use std::cmp::Reverse;
use tokio::time::Instant;

/// Where rows go whose topic depends on the same.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) topic: usize,
    /// Why Kafka or the configuration allows no topic of this name, if so.
    pub(super) invalid: Option<Rejection>,
}

/// How many topics are looked up at once. One by one, a thousand of them would take seconds.
const LOOKUPS_MAX: usize = 16;

impl<P: Producer> Session<P> {
    /// Finds the unknown routes of this row and all later rows.
    pub(super) async fn find_routes<E: Event>(
        &mut self,
        topics: &TopicRules,
        batch: &Batch<E>,
        from: usize,
    ) -> Result<(), Failure> {
        let (mut unknown, mut buffer) = (Vec::new(), Vec::new());
        for row in &batch.rows()[from..] {
            let dependency = topic::dependency(topics, row, &mut buffer);
            if !self.routes.contains_key(dependency) {
                let route = self.route(topics, row);
                let state = &self.topics[route.topic].state;
                let looks_up =
                    route.invalid.is_none() && matches!(state, TopicState::Unknown | TopicState::Due(_));
                unknown.extend(looks_up.then_some(route.topic));
                self.routes.insert(dependency.to_vec(), route);
            }
        }
        unknown.sort_unstable();
        unknown.dedup(); // several types may share a topic
        if unknown.len() >= LISTED_FROM
            && let Some(listed) = self.producer.list_topics().await
        {
            unknown.retain(|topic| {
                let topic = &mut self.topics[*topic];
                let exists = listed.contains(&topic.name);
                if !exists {
                    topic.state = TopicState::Held(UNKNOWN_TOPIC.rejection(not_listed(&topic.name)));
                }
                exists
            });
        }
        let found = {
            let (producer, topics) = (&self.producer, &self.topics);
            let lookup = async |topic: usize| (topic, producer.lookup(&topics[topic].name).await);
            stream::iter(unknown).map(lookup).buffer_unordered(LOOKUPS_MAX).collect::<Vec<_>>().await
        };
        for (topic, partitions) in found {
            self.topics[topic].state = match partitions {
                Ok(partitions) => self.open(topic, partitions),
                Err(failure) if matches!(failure.kind, FailureKind::Topic | FailureKind::Row) => {
                    TopicState::Held(failure.into())
                }
                Err(failure) => match &mut self.topics[topic].state {
                    // It is still in the metadata of the producer. If the connection is lost, sending shows it.
                    TopicState::Due(primed) if failure.kind == FailureKind::Unknown => {
                        TopicState::Open(std::mem::take(primed))
                    }
                    _ => return Err(failure),
                },
            };
        }
        Ok(())
    }

    /// The state of a topic that was found with this number of partitions. If the number is the same as before, its
    /// partitions stay primed.
    fn open(&mut self, topic: usize, partitions: u32) -> TopicState {
        let topic = &mut self.topics[topic];
        if self.counts.found(&topic.name, partitions) {
            topic.looked_up_at = Some(Instant::now());
        }
        match std::mem::replace(&mut topic.state, TopicState::Unknown) {
            TopicState::Due(primed) if primed.len() == partitions as usize => TopicState::Open(primed),
            _ => TopicState::Open(vec![Priming::Fresh; partitions as usize]),
        }
    }

    /// Makes the session look up topics again: those that it looked up a while ago, and those in which another session has
    /// found a change. Only between two batches, when no row is in flight.
    pub(super) fn look_up_due(&mut self) {
        let changed =
            self.counts.changes() != std::mem::replace(&mut self.changes_seen, self.counts.changes());
        for topic in &mut self.topics {
            let is_due = topic.looked_up_at.is_none_or(|at| {
                self.counts.is_due(at, self.now) || changed && self.counts.changed_since(&topic.name, at)
            });
            if let (true, TopicState::Open(primed)) = (is_due, &mut topic.state) {
                topic.state = TopicState::Due(std::mem::take(primed));
            }
        }
    }

    /// Forgets the topics that are not open and, if there are too many, the least recently used ones. A forgotten topic is
    /// looked up and primed again. Only between two batches, when no [`super::Destination`] refers to a topic by its index.
    pub(super) fn forget_topics(&mut self) {
        let is_open = |at: &usize| matches!(self.topics[*at].state, TopicState::Open(_) | TopicState::Due(_));
        let mut kept: Vec<usize> = (0..self.topics.len()).filter(is_open).collect();
        if kept.len() > TOPICS_KEPT {
            kept.sort_by_key(|at| Reverse(self.topics[*at].used_at));
            kept.truncate(TOPICS_KEPT);
        }
        let mut moved_to = vec![None; self.topics.len()];
        kept.iter().enumerate().for_each(|(to, from)| moved_to[*from] = Some(to));
        if kept.len() < self.topics.len() {
            let mut topics: Vec<Option<Topic>> = self.topics.drain(..).map(Some).collect();
            self.topics.extend(kept.into_iter().filter_map(|at| topics[at].take()));
            let named = self.topics.iter().enumerate().map(|(at, topic)| (topic.name.clone(), at));
            self.topics_by_name = named.collect();
        }
        let topics = &self.topics;
        self.routes.retain(|_, Route { topic, invalid }| {
            let kept = moved_to[*topic].filter(|to| matches!(topics[*to].state, TopicState::Open(_)));
            invalid.is_none() && kept.map(|to| *topic = to).is_some()
        });
        // Many types may share a topic. Their routes are found again without asking Kafka.
        if self.routes.len() > TOPICS_KEPT {
            self.routes.clear();
        }
    }

    fn route<E: Event>(&mut self, topics: &TopicRules, row: &E) -> Route {
        let (name, invalid) = match topic::of(topics, row) {
            Ok(name) => (name, None),
            Err((name, rejection)) => (name, Some(rejection)),
        };
        let topic = *self.topics_by_name.entry(name.clone()).or_insert(self.topics.len());
        if topic == self.topics.len() {
            let used_at = self.now;
            self.topics.push(Topic { name, state: TopicState::Unknown, used_at, looked_up_at: None });
        }
        Route { topic, invalid }
    }
}
