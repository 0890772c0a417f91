//! From a row's aggregate type to its topic.

use super::{Priming, Session, State, Topic};
use crate::relay::batch::Batch;
use crate::relay::event::Event;
use crate::relay::failure::{Failure, FailureKind, Rejection};
use crate::relay::publisher::Producer;
use crate::relay::reason::INVALID_TOPIC_NAME;
use crate::relay::refusals::Refusals;
use futures_util::{StreamExt, stream};
use pg_outbox::topic::TopicTemplate;

/// Where rows go, and what is known of their topics.
#[derive(Clone, Copy)]
pub struct Routing<'a> {
    /// From `aggregate_type` to topic.
    pub template: &'a TopicTemplate,
    /// What topics have refused.
    pub refusals: &'a Refusals,
}

/// Where an aggregate type goes.
#[derive(Clone)]
pub(super) enum Route {
    Topic(usize),
    /// Kafka allows no topic of this name.
    Invalid(String, Rejection),
}

/// So many topics are looked up at once: one after the other, a thousand of them would take seconds.
const LOOKUPS_MAX: usize = 16;

impl<P: Producer> Session<P> {
    /// Finds the routes of all aggregate types that this row and those behind it have and that are not known yet.
    pub(super) async fn look_up<E: Event>(
        &mut self,
        routing: Routing<'_>,
        batch: &Batch<E>,
        from: usize,
    ) -> Result<(), Failure> {
        let mut unknown = Vec::new();
        for row in &batch.rows()[from..] {
            if !self.routes.contains_key(row.aggregate_type()) {
                let route = self.route(routing, row.aggregate_type());
                if let Route::Topic(topic) = &route {
                    unknown.extend(matches!(self.topics[*topic].state, State::Unknown).then_some(*topic));
                }
                self.routes.insert(row.aggregate_type().to_vec(), route);
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
                Ok(partitions) => State::Open(vec![Priming::Fresh; partitions as usize]),
                Err(failure) if matches!(failure.kind, FailureKind::Topic | FailureKind::Row) => {
                    State::Held(failure.into())
                }
                Err(failure) => return Err(failure),
            };
        }
        Ok(())
    }

    fn route(&mut self, routing: Routing<'_>, aggregate_type: &[u8]) -> Route {
        let name = routing.template.topic(&String::from_utf8_lossy(aggregate_type));
        if let Err(rejection) = check_name(&name, aggregate_type) {
            return Route::Invalid(name, rejection);
        }
        let known = self.topics.iter().position(|topic| topic.name == name);
        Route::Topic(known.unwrap_or_else(|| {
            let alone_from = routing.refusals.size_of(&name);
            self.topics.push(Topic { name, state: State::Unknown, alone_from });
            self.topics.len() - 1
        }))
    }
}

fn check_name(topic: &str, aggregate_type: &[u8]) -> Result<(), Rejection> {
    let invalid = |error: String| INVALID_TOPIC_NAME.rejection(error);
    std::str::from_utf8(aggregate_type)
        .map_err(|_| invalid("aggregate_type is not UTF-8, so it names no Kafka topic".to_owned()))?;
    pg_outbox::topic::check_topic(topic).map_err(|error| invalid(error.to_string()))
}
