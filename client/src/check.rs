//! What is refused before Postgres is asked: a row that the relay could not deliver is better refused here,
//! where the application still knows why.

use crate::error::{Error, InvalidEvent};
use crate::event::Event;
use crate::topic::{TopicTemplate, check_topic};

/// Headers that the relay writes into every record itself: a second one of the name would leave consumers
/// to guess which of them tells duplicates apart.
const RESERVED_HEADERS: [&str; 2] = ["event_id", "event_type"];

/// Checks the events of a call.
pub fn check(events: &[Event], template: &TopicTemplate) -> Result<(), Error> {
    let mut topic = String::new();
    for (event, position) in events.iter().zip(1..) {
        let checked = check_names(event)
            .and_then(|()| check_headers(event))
            .and_then(|()| check_destination(event, template, &mut topic));
        checked.map_err(|reason| Error::InvalidEvent { position, reason })?;
    }
    Ok(())
}

fn check_names(event: &Event) -> Result<(), InvalidEvent> {
    check_name("aggregate_type", &event.aggregate_type)?;
    check_name("aggregate_id", &event.aggregate_id)?;
    check_name("event_type", &event.event_type)
}

fn check_headers(event: &Event) -> Result<(), InvalidEvent> {
    for (name, value) in &event.headers {
        check_name("a header's name", name)?;
        check_storable("a header's value", value)?;
        if RESERVED_HEADERS.contains(&name.as_str()) {
            return Err(InvalidEvent::ReservedHeader { name: name.clone() });
        }
    }
    Ok(())
}

fn check_name(field: &'static str, text: &str) -> Result<(), InvalidEvent> {
    if text.is_empty() {
        return Err(InvalidEvent::Empty { field });
    }
    check_storable(field, text)
}

fn check_storable(field: &'static str, text: &str) -> Result<(), InvalidEvent> {
    if text.contains('\0') { Err(InvalidEvent::Nul { field }) } else { Ok(()) }
}

/// Renders into the caller's string: ten thousand events need one.
fn check_destination(
    event: &Event,
    template: &TopicTemplate,
    topic: &mut String,
) -> Result<(), InvalidEvent> {
    template.render(&event.aggregate_type, topic);
    check_topic(topic).map_err(|reason| InvalidEvent::Topic {
        aggregate_type: event.aggregate_type.clone(),
        topic: topic.clone(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::NoPayload;
    use crate::topic::TopicError;

    fn event() -> Event<NoPayload> {
        Event::new("order", 42_i64, "OrderPlaced")
    }

    fn check_one(event: Event<NoPayload>, template: &str) -> Result<(), InvalidEvent> {
        match check(&[event.tombstone()], &TopicTemplate::parse(template).unwrap()) {
            Ok(()) => Ok(()),
            Err(Error::InvalidEvent { position: 1, reason }) => Err(reason),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_and_unstorable_names_are_refused() {
        let check = |event| check_one(event, "constant");
        let empty = |field| Err(InvalidEvent::Empty { field });
        let nul = |field| Err(InvalidEvent::Nul { field });
        assert_eq!(check(event().header("n", "")), Ok(()));
        assert_eq!(check(Event::new("", 1, "E")), empty("aggregate_type"));
        assert_eq!(check(Event::new("a", "", "E")), empty("aggregate_id"));
        assert_eq!(check(Event::new("a", 1, "")), empty("event_type"));
        assert_eq!(check(Event::new("a\0", 1, "E")), nul("aggregate_type"));
        assert_eq!(check(Event::new("a", "1\0", "E")), nul("aggregate_id"));
        assert_eq!(check(Event::new("a", 1, "\0E")), nul("event_type"));
        assert_eq!(check(event().header("", "v")), empty("a header's name"));
        assert_eq!(check(event().header("n\0", "v")), nul("a header's name"));
        assert_eq!(check(event().header("n", "v\0")), nul("a header's value"));
    }

    #[test]
    fn headers_of_the_relay_are_refused() {
        for name in RESERVED_HEADERS {
            let reserved = InvalidEvent::ReservedHeader { name: name.to_owned() };
            assert_eq!(check_one(event().header(name, "v"), "constant"), Err(reserved));
        }
    }

    #[test]
    fn the_topic_is_checked_after_the_template() {
        let events = [event().tombstone(), Event::new("my order", 1, "E").tombstone()];
        assert_eq!(
            check(&events, &TopicTemplate::default()).unwrap_err().to_string(),
            "event 2 of the call cannot be enqueued: aggregate_type \"my order\" gives the topic \
             \"events.my order\": character ' ' at position 10 is not one of a-z A-Z 0-9 . _ -"
        );
        let topic =
            |length: usize| check_one(Event::new("x".repeat(length), 1, "E"), "events.{aggregate_type}");
        assert_eq!(topic(242), Ok(()));
        assert!(matches!(
            topic(243),
            Err(InvalidEvent::Topic { reason: TopicError::TooLong { length: 250 }, .. })
        ));
    }

    #[test]
    fn dots_alone_are_no_topic() {
        let expected = InvalidEvent::Topic {
            aggregate_type: "..".to_owned(),
            topic: "..".to_owned(),
            reason: TopicError::Dots(".."),
        };
        assert_eq!(check_one(Event::new("..", 1, "E"), "{aggregate_type}"), Err(expected));
    }

    #[test]
    fn a_constant_template_takes_any_aggregate_type() {
        assert_eq!(check_one(Event::new("my order", 1, "E"), "constant"), Ok(()));
    }
}
