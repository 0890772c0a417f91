//! Rejects events that the relay could not deliver, before a statement is sent.

use crate::error::{Error, InvalidEvent};
use crate::event::{Event, HeaderValue};
use crate::topic::{TopicTemplate, check_topic};

/// Headers that the relay adds to every record. With a second header of the same name, consumers could not tell which one
/// identifies duplicates. The relay would reject the event, or drop a header in another case.
const RESERVED_HEADERS: [&str; 2] = ["event_id", "event_type"];

pub fn check(events: &[Event], template: &TopicTemplate) -> Result<(), Error> {
    let mut topic = String::new();
    for (event, position) in events.iter().zip(1..) {
        check_event(event, template, &mut topic)
            .map_err(|reason| Error::InvalidEvent { position, reason })?;
    }
    Ok(())
}

/// Renders the topic into the caller's string, to allocate it only once.
fn check_event(event: &Event, template: &TopicTemplate, topic: &mut String) -> Result<(), InvalidEvent> {
    check_name("aggregate_type", &event.aggregate_type)?;
    check_name("aggregate_id", &event.aggregate_id)?;
    check_name("event_type", &event.event_type)?;
    for (name, value) in &event.headers {
        check_name("a header name", name)?;
        if let HeaderValue::Text(value) = value {
            check_storable("a header value", value)?;
        }
        if RESERVED_HEADERS.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
            return Err(InvalidEvent::ReservedHeader { name: name.clone() });
        }
    }
    template.render(&event.aggregate_type, &event.event_type, topic);
    check_topic(topic).map_err(|reason| InvalidEvent::Topic {
        aggregate_type: event.aggregate_type.clone(),
        event_type: event.event_type.clone(),
        topic: topic.clone(),
        reason,
    })
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
    fn empty_and_unstorable_names_are_rejected() {
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
        assert_eq!(check(event().header("", "v")), empty("a header name"));
        assert_eq!(check(event().header("n\0", "v")), nul("a header name"));
        assert_eq!(check(event().header("n", "v\0")), nul("a header value"));
    }

    #[test]
    fn reserved_headers_are_rejected() {
        for name in ["event_id", "event_type", "Event_Type"] {
            let reserved = InvalidEvent::ReservedHeader { name: name.to_owned() };
            assert_eq!(check_one(event().header(name, "v"), "constant"), Err(reserved));
        }
    }

    #[test]
    fn the_topic_from_the_template_is_checked() {
        let events = [event().tombstone(), Event::new("my order", 1, "E").tombstone()];
        assert_eq!(
            check(&events, &TopicTemplate::default()).unwrap_err().to_string(),
            "cannot enqueue event 2 of the call: aggregate_type \"my order\" and event_type \"E\" result in the invalid \
             topic \"events.my order\": character ' ' at position 10 is not one of a-z A-Z 0-9 . _ -"
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
    fn a_topic_name_cannot_be_dots_only() {
        let expected = InvalidEvent::Topic {
            aggregate_type: "..".to_owned(),
            event_type: "E".to_owned(),
            topic: "..".to_owned(),
            reason: TopicError::Dots(".."),
        };
        assert_eq!(check_one(Event::new("..", 1, "E"), "{aggregate_type}"), Err(expected));
    }

    #[test]
    fn the_event_type_is_checked_only_if_it_is_part_of_the_topic() {
        let event = || Event::new("order", 1, "Order paid");
        assert_eq!(check_one(event(), "events.{aggregate_type}"), Ok(()));
        let refused = check_one(event(), "{aggregate_type}.{event_type}").unwrap_err();
        assert!(
            matches!(&refused, InvalidEvent::Topic { topic, .. } if topic == "order.Order paid"),
            "{refused}"
        );
    }

    #[test]
    fn a_constant_template_accepts_any_aggregate_type() {
        assert_eq!(check_one(Event::new("my order", 1, "E"), "constant"), Ok(()));
    }
}
