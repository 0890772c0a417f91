//! Maps a row to its topic.

use super::{Priming, Session, TOPICS_KEPT, Topic, TopicState};
use crate::relay::event::Event;
use crate::relay::failure::{Failure, FailureKind, Rejection};
use crate::relay::publisher::Producer;
use crate::relay::rows::batch::Batch;
use crate::relay::topic::{self, TopicRules};
use futures_util::{StreamExt, stream};
use std::cmp::Reverse;

/// Where rows go whose topic depends on the same.
#[derive(Clone)]
pub(super) enum Route {
    Topic(usize),
    /// Kafka or the configuration allows no topic of this name.
    Invalid(String, Rejection),
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
                if let Route::Topic(topic) = &route {
                    unknown
                        .extend(matches!(self.topics[*topic].state, TopicState::Unknown).then_some(*topic));
                }
                self.routes.insert(dependency.to_vec(), route);
            }
        }
        unknown.sort_unstable();
        unknown.dedup(); // several types may share a topic
        let found = {
            let (producer, topics) = (&self.producer, &self.topics);
            let lookup = async |topic: usize| (topic, producer.lookup(&topics[topic].name).await);
            stream::iter(unknown).map(lookup).buffer_unordered(LOOKUPS_MAX).collect::<Vec<_>>().await
        };
        for (topic, partitions) in found {
            self.topics[topic].state = match partitions {
                Ok(partitions) => TopicState::Open(vec![Priming::Fresh; partitions as usize]),
                Err(failure) if matches!(failure.kind, FailureKind::Topic | FailureKind::Row) => {
                    TopicState::Held(failure.into())
                }
                Err(failure) => return Err(failure),
            };
        }
        Ok(())
    }

    /// Forgets the topics that are not open and, if there are too many, the least recently used ones. A forgotten topic is
    /// looked up and primed again. Only between two batches, when no [`super::Destination`] refers to a topic by its index.
    pub(super) fn forget_topics(&mut self) {
        let is_open = |at: &usize| matches!(self.topics[*at].state, TopicState::Open(_));
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
        }
        self.routes.retain(|_, route| match route {
            Route::Topic(at) => moved_to[*at].map(|to| *at = to).is_some(),
            Route::Invalid(..) => false,
        });
        // Many types may share a topic. Their routes are found again without asking Kafka.
        if self.routes.len() > TOPICS_KEPT {
            self.routes.clear();
        }
    }

    fn route<E: Event>(&mut self, topics: &TopicRules, row: &E) -> Route {
        let name = match topic::of(topics, row) {
            Ok(name) => name,
            Err((name, rejection)) => return Route::Invalid(name, rejection),
        };
        let known = self.topics.iter().position(|topic| topic.name == name);
        Route::Topic(known.unwrap_or_else(|| {
            self.topics.push(Topic { name, state: TopicState::Unknown, used_at: self.now });
            self.topics.len() - 1
        }))
    }
}
