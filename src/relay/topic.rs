//! Which topic an event belongs to.

use crate::relay::failure::Rejection;
use crate::relay::reason::INVALID_TOPIC_NAME;
use pg_outbox::topic::{TopicTemplate, check_topic};

/// The topic of an aggregate type. If Kafka allows no topic of that name, the error has the name and the reason.
pub(crate) fn of(template: &TopicTemplate, aggregate_type: &[u8]) -> Result<String, (String, Rejection)> {
    let name = template.topic(&String::from_utf8_lossy(aggregate_type));
    match check_name(&name, aggregate_type) {
        Ok(()) => Ok(name),
        Err(rejection) => Err((name, rejection)),
    }
}

fn check_name(topic: &str, aggregate_type: &[u8]) -> Result<(), Rejection> {
    let invalid = |error: String| INVALID_TOPIC_NAME.rejection(error);
    std::str::from_utf8(aggregate_type).map_err(|_| {
        invalid("aggregate_type is not valid UTF-8, so it is not a valid topic name".to_owned())
    })?;
    check_topic(topic).map_err(|error| invalid(error.to_string()))
}
