//! Which topic an event belongs to.

use crate::relay::event::Event;
use crate::relay::failure::Rejection;
use crate::relay::reason::INVALID_TOPIC_NAME;
use pg_outbox::topic::{TopicTemplate, check_topic};

/// The topic of an event. If Kafka allows no topic of that name, the error has the name and the reason.
pub(crate) fn of<E: Event>(template: &TopicTemplate, event: &E) -> Result<String, (String, Rejection)> {
    let name = name(template, event);
    match check_name(template, event, &name) {
        Ok(()) => Ok(name),
        Err(rejection) => Err((name, rejection)),
    }
}

/// The name of the topic, which may be invalid.
pub(crate) fn name<E: Event>(template: &TopicTemplate, event: &E) -> String {
    let (aggregate_type, event_type) = (event.aggregate_type(), event.event_type());
    template.topic(&String::from_utf8_lossy(aggregate_type), &String::from_utf8_lossy(event_type))
}

/// What the topic of an event depends on. Events with the same dependency have the same topic. Needs `buffer` only if the
/// topic depends on the event type.
pub(crate) fn dependency<'a, E: Event>(
    template: &TopicTemplate,
    event: &'a E,
    buffer: &'a mut Vec<u8>,
) -> &'a [u8] {
    if !template.has_event_type() {
        return event.aggregate_type();
    }
    buffer.clear();
    buffer.extend_from_slice(&event.aggregate_type().len().to_le_bytes());
    buffer.extend_from_slice(event.aggregate_type());
    buffer.extend_from_slice(event.event_type());
    buffer
}

fn check_name<E: Event>(template: &TopicTemplate, event: &E, topic: &str) -> Result<(), Rejection> {
    let invalid = |error: String| INVALID_TOPIC_NAME.rejection(error);
    let is_utf8 = |column: &str, text: &[u8]| {
        let error = || invalid(format!("{column} is not valid UTF-8, so it is not a valid topic name"));
        std::str::from_utf8(text).map(drop).map_err(|_| error())
    };
    is_utf8("aggregate_type", event.aggregate_type())?;
    if template.has_event_type() {
        is_utf8("event_type", event.event_type())?;
    }
    check_topic(topic).map_err(|error| invalid(error.to_string()))
}
