//! From a row's aggregate type to its topic.

use super::{Priming, Session, State, Topic};
use crate::relay::batch::Batch;
use crate::relay::event::Event;
use crate::relay::failure::{Failure, FailureKind, Rejection};
use crate::relay::publisher::Producer;
use crate::relay::reason::INVALID_TOPIC_NAME;
use crate::relay::refusals::Refusals;
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

impl<P: Producer> Session<P> {
    /// Finds the route of a row's aggregate type; `None` if the row was rejected on the way.
    pub(super) async fn look_up<E: Event>(
        &mut self,
        routing: Routing<'_>,
        batch: &mut Batch<E>,
        index: usize,
    ) -> Result<Option<usize>, Failure> {
        let aggregate_type = batch.rows()[index].aggregate_type().to_vec();
        let name = routing.template.topic(&String::from_utf8_lossy(&aggregate_type));
        if let Err(rejection) = check_name(&name, &aggregate_type) {
            batch.rejected(index, &name, rejection.clone());
            self.routes.insert(aggregate_type, Route::Invalid(name, rejection));
            return Ok(None);
        }
        let topic = self.topics.iter().position(|topic| topic.name == name).unwrap_or_else(|| {
            let alone_from = routing.refusals.size_of(&name);
            self.topics.push(Topic { name: name.clone(), state: State::Unknown, alone_from });
            self.topics.len() - 1
        });
        if matches!(self.topics[topic].state, State::Unknown) {
            self.topics[topic].state = match self.producer.lookup(&name).await {
                Ok(partitions) => State::Open(vec![Priming::Fresh; partitions as usize]),
                Err(failure) if matches!(failure.kind, FailureKind::Topic | FailureKind::Row) => {
                    State::Held(failure.into())
                }
                Err(failure) => return Err(failure),
            };
        }
        self.routes.insert(aggregate_type, Route::Topic(topic));
        Ok(Some(topic))
    }
}

fn check_name(topic: &str, aggregate_type: &[u8]) -> Result<(), Rejection> {
    let invalid = |error: String| INVALID_TOPIC_NAME.rejection(error);
    std::str::from_utf8(aggregate_type)
        .map_err(|_| invalid("aggregate_type is not UTF-8, so it names no Kafka topic".to_owned()))?;
    pg_outbox::topic::check_topic(topic).map_err(|error| invalid(error.to_string()))
}
